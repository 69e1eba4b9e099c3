"""Settings of speed: what `auto` means, and that no way of computing changes the numbers beyond rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.attention import SDPBackend

from stateplay_rl.config.world import SpeedOptions, WorldConfig
from stateplay_rl.worlds.native.speed import PLAIN, Speed, resolve_speed
from stateplay_rl.worlds.native.world import NativeWorld
from stateplay_rl.worlds.world_files import resolve_world
from tests.worlds.tiny import SLOTS, tiny_inputs, tiny_world

CPU = torch.device("cpu")


def test_a_cpu_goes_the_plain_way_unless_told_otherwise() -> None:
    assert resolve_speed(SpeedOptions(), CPU, torch.bfloat16) == PLAIN
    told = SpeedOptions(attention="flash", compile="on", vae="on", park_text="on")
    assert resolve_speed(told, CPU, torch.float32) == Speed(SDPBackend.FLASH_ATTENTION, True, True, True)
    assert resolve_speed(SpeedOptions(attention="torch"), CPU, torch.float32).attention is None


def test_a_world_file_may_say_yes_and_no() -> None:
    """YAML reads a bare on and off as true and false."""
    world = resolve_world("arena").model_dump()
    read = WorldConfig.model_validate(
        {**world, "speed": {"compile": True, "vae": False}, "gradient_checkpointing": True}
    )
    assert (read.speed.compile, read.speed.vae, read.gradient_checkpointing) == ("on", "off", "full")
    read = WorldConfig.model_validate({**world, "speed": None, "gradient_checkpointing": False})
    assert (read.speed, read.gradient_checkpointing) == (SpeedOptions(), "off")


@pytest.mark.parametrize(
    ("lines", "message"),
    [({"speed": {"compile": "on"}}, "native"), ({"gradient_checkpointing": "selective"}, "all blocks or none")],
)
def test_a_checkout_runs_as_it_is(lines: dict[str, object], message: str, tmp_path: Path) -> None:
    world = {**resolve_world("arena").model_dump(), "backend": "stateplay", "checkout": tmp_path}
    with pytest.raises(ValidationError, match=message):
        WorldConfig.model_validate({**world, **lines})


def gradient_of(world: NativeWorld) -> tuple[Tensor, Tensor]:
    """A velocity and the gradient of module B."""
    conditions = world.encode_conditions(tiny_inputs(1))
    latents = torch.randn(1, 4, SLOTS, 4, 4, generator=torch.Generator().manual_seed(5))
    with world.policies.live_window():
        velocity = world.velocity(latents, torch.tensor([0.5]), conditions).velocity_BCfHW
        velocity.square().sum().backward()
    rollout = world.transformer.latent_state_rollout
    assert rollout is not None
    grad = rollout.transition.delta.weight.grad
    assert grad is not None
    return velocity.detach(), grad


def test_a_named_kernel_gives_the_same_velocity_and_gradient() -> None:
    """Flash attention is the one fused kernel of a CPU; `math` would differ in the last bits."""
    plain, named = tiny_world(), tiny_world()
    for world in (plain, named):
        world.set_mode("transition")
    named.transformer.use_attention(SDPBackend.FLASH_ATTENTION)
    named.transformer.checkpointing = "full"  # the kernel must be chosen again when a block is recomputed
    for found, expected in zip(gradient_of(named), gradient_of(plain), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_kernel_that_cannot_run_here_is_an_error() -> None:
    world = tiny_world()
    world.set_mode("transition")
    world.transformer.use_attention(SDPBackend.CUDNN_ATTENTION)
    with pytest.raises(RuntimeError, match="No viable backend"):
        gradient_of(world)


def test_graphs_are_shared_by_blocks_and_made_once_a_length() -> None:
    """Of a block: without gradient, into the states only (first block), into hidden and states; the same of a
    transition step. Recomputing adds the two with gradient once; another length adds the block's three; going back
    adds none."""
    world = tiny_world()
    world.set_mode("transition")
    conditions = world.encode_conditions(tiny_inputs(1))
    shorter = tiny_inputs(1)[0]
    short = world.encode_conditions([type(shorter)(**{**vars(shorter), "latent_frames": SLOTS - 1})])
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    world.transformer.compile_blocks(backend="aot_eager", dynamic=False)

    def graphs(batch: object, slots: int) -> int:
        latents = torch.ones(1, 4, slots, 4, 4)
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        with torch.no_grad():
            world.velocity(latents, torch.tensor([0.5]), batch)  # type: ignore[arg-type]
        with world.policies.live_window():
            states = world.states(batch)  # type: ignore[arg-type]
            world.velocity(latents, torch.tensor([0.5]), batch, states).velocity_BCfHW.sum().backward()  # type: ignore[arg-type]
        return torch._dynamo.utils.counters["stats"]["unique_graphs"] - before

    assert graphs(conditions, SLOTS) == 6
    world.transformer.checkpointing = "full"
    assert graphs(conditions, SLOTS) == 2
    assert graphs(short, SLOTS - 1) == 3
    assert graphs(conditions, SLOTS) == graphs(short, SLOTS - 1) == 0
    assert not torch._dynamo.utils.counters["graph_break"]
