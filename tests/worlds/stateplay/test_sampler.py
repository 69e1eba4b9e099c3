"""A checkout's own sampler: used when it equals the Euler loop, refused when it does not, recorded either way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from stateplay_rl.errors import InputError
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.worlds.load import load_world
from stateplay_rl.worlds.sampling import sample_candidates
from stateplay_rl.worlds.stateplay.networks import open_checkout
from stateplay_rl.worlds.stateplay.sampler import shift_of
from stateplay_rl.worlds.stateplay.world import CheckoutWorld
from stateplay_rl.worlds.world_files import resolve_world
from tests.worlds.stateplay.standin_world import write_checkout_world
from tests.worlds.stateplay.test_stateplay_world import inputs, noise

SAMPLER = "diffsynth.pipelines.sampling:sample_latent"
CODE = """
import torch
from diffsynth.diffusion.flow_match import FlowMatchScheduler
from diffsynth.pipelines.stateplay import model_fn_stateplay_latent

CALLS = []

def sample_latent(dit, latents, first_frame_latents, context, keyboard_action, num_inference_steps=30, shift=5.0):
    CALLS.append((num_inference_steps, shift))
    scheduler = FlowMatchScheduler(template="Wan")
    scheduler.set_timesteps(num_inference_steps, shift=shift)
    sigmas = scheduler.sigmas.tolist() + [0.0]
    x = latents.to(first_frame_latents.dtype)
    for number in range(num_inference_steps):
        x = torch.cat([first_frame_latents, x[:, :, 1:]], dim=2)
        t = torch.tensor([1000 * sigmas[number]], dtype=x.dtype)
        v = model_fn_stateplay_latent(dit, latents=x, timestep=t, context=context, keyboard_action=keyboard_action,
                                      fuse_vae_embedding_in_latents=True)["pred_video"]
        x = x + (sigmas[number + 1] - sigmas[number]) * v
    return {"latents": x}
"""


def world_with(folder: Path, code: str = CODE, symbol: str | None = SAMPLER, **changes: object) -> Path:
    world = write_checkout_world(folder, **changes)
    (folder / "checkout" / "diffsynth" / "pipelines" / "sampling.py").write_text(code)
    lines = yaml.safe_load(world.read_text())
    if symbol is not None:
        lines["checkout_options"]["symbols"] = {"sampler": symbol}
    world.write_text(yaml.safe_dump(lines))
    return world


def load(world: Path) -> CheckoutWorld:
    loaded = load_world(resolve_world(str(world)))
    assert isinstance(loaded, CheckoutWorld)
    return loaded


def sampled(world: CheckoutWorld) -> torch.Tensor:
    batch = world.encode_conditions(inputs())
    return sample_candidates(world, batch, policy="live", sigmas=sampling_sigmas(4), noise=noise())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_equal_sampler_is_used_and_on_record(tmp_path: Path, dtype: str) -> None:
    own = load(world_with(tmp_path / "own", compute_dtype=dtype))
    plain = load(world_with(tmp_path / "plain", symbol=None, compute_dtype=dtype))
    assert own.own_sampler is not None
    calls = own.own_sampler.function.__globals__["CALLS"]  # type: ignore[attr-defined]
    before = len(calls)
    latents = sampled(own)
    assert calls[before:] == [(4, 5.0)] * 2, "one candidate a call, with the steps and shift that were asked for"
    assert torch.equal(latents[:, :, :1], own.encode_conditions(inputs()).first_latent_BC1HW.bfloat16())
    expected = sampled(plain)
    assert float((latents - expected).abs().max() / expected.abs().max()) < (1e-2 if dtype == "float32" else 5e-2)
    record = own.facts["checkout"]["sampler"]
    assert record.startswith(
        "the checkout's diffsynth.pipelines.sampling:sample_latent (diffsynth/pipelines/sampling.py:8)"
    )
    assert "Euler loop over" in plain.facts["checkout"]["sampler"]
    assert own.sha256 != plain.sha256, "another sampler makes another world"


def test_a_record_made_without_loading_says_that_nothing_was_compared(tmp_path: Path) -> None:
    checkout = open_checkout(resolve_world(str(world_with(tmp_path / "w"))))
    assert checkout.record["sampler"].endswith(", not compared yet")


def test_it_follows_the_policy_in_use(tmp_path: Path) -> None:
    world = load(world_with(tmp_path / "w"))
    (group,) = world.set_mode("transition")
    before = sampled(world)
    with torch.no_grad():
        for parameter in group.parameters:
            parameter.add_(0.1)
    assert not torch.equal(sampled(world), before)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shift=shift", "shift=3.0", "does not sample what"),
        ("x = x + (sigmas", "x = x + 0.98 * (sigmas", "does not sample what"),
        ("x = torch.cat([first_frame_latents, x[:, :, 1:]], dim=2)", "pass", "does not sample what"),
        ('return {"latents": x}', "return x * float('nan')", "does not sample what"),
        ('return {"latents": x}', "return x[:, :, 1:]", "for latents"),
        ('return {"latents": x}', "return None", "a NoneType"),
        ("context, keyboard_action, num", "context, keyboard_action, secret, num", "needs secret"),
        ("latents, first_frame_latents, context", "latents, first_frame_latents, text", "takes no context"),
    ],
)
def test_another_sampler_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in CODE
    with pytest.raises(InputError, match=message) as refusal:
        load(world_with(tmp_path / "w", CODE.replace(old, new)))
    assert refusal.value.hint


def test_a_sampler_that_nobody_named_is_pointed_out_and_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = load(world_with(tmp_path / "w", symbol=None))
    assert world.own_sampler is None
    printed = capsys.readouterr().err
    assert "sample_latent" in printed
    assert f"symbols: {{sampler: {SAMPLER}}}" in printed


def test_the_explicit_pipeline_is_no_sampler(tmp_path: Path) -> None:
    code = "class StatePlayPipeline:\n    def __init__(self, **kwargs):\n        pass\n"
    with pytest.raises(InputError, match="explicit-state"):
        load(world_with(tmp_path / "w", code, "diffsynth.pipelines.sampling:StatePlayPipeline"))


@pytest.mark.parametrize("part", ["sampler", "transition_tokenizer"])
def test_a_named_part_that_is_not_there_is_an_error_though_it_is_optional(tmp_path: Path, part: str) -> None:
    world = write_checkout_world(tmp_path / "w")
    lines = yaml.safe_load(world.read_text())
    lines["checkout_options"]["symbols"] = {part: "diffsynth.pipelines.nowhere:sample"}
    world.write_text(yaml.safe_dump(lines))
    with pytest.raises(InputError, match=f"{part}: diffsynth.pipelines.nowhere:sample of the world file is not in"):
        load(world)


@pytest.mark.parametrize(("steps", "shift"), [(30, 5.0), (4, 5.0), (10, 3.0), (2, 1.0)])
def test_the_shift_of_a_grid(steps: int, shift: float) -> None:
    assert shift_of(sampling_sigmas(steps, shift)) == pytest.approx(shift)
