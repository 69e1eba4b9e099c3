"""Two worlds on the same inputs: encode, velocity at several noise levels, states, a short rollout, gradients.

The worlds are measured one after the other, so that only one is in memory. Everything after the encoding gets
the first world's encoded condition: a difference of the VAEs shows in its own line and in no other.

Shapes: B = 1 batch, C latent channels, f latent slots, H W latent grid, T frames, h w picture size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stateplay_rl.checks.comparison import Comparison, GoldenLine
from stateplay_rl.errors import CheckError
from stateplay_rl.nft.randomness import DrawKey, normal
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.nft.solvers import Euler, pin_first_slot, solve
from stateplay_rl.worlds.base import ConditionBatch, ConditionInputs, World, WorldSpec

LEVEL = 1.01 / 255
"""One level of a decoded frame, relative to white."""

GRADIENT_SIGMA = 0.6
PROMPT = "NPC: Active_Behavior(Walk Left), Strategy(Passive Guarding)"
PRESS_SHARE = 0.3
HOLD_ROWS = 10

TOLERANCES: Mapping[torch.dtype, Mapping[str, float]] = {
    torch.float32: {"encode": 1e-4, "network": 1e-4, "gradient": 1e-3},
    torch.bfloat16: {"encode": 3e-2, "network": 5e-2, "gradient": 1e-1},
}
"""Largest error relative to the largest value, by the coarser compute dtype of the two worlds."""


@dataclass(frozen=True)
class ParityPlan:
    """What is computed in both worlds.

    Args:
        inputs: one condition.
        clip_ThwC: uint8 frames of a clip, T = 1 (mod 4).
        sigmas: noise levels of the compared velocities.
        steps: Euler steps of the rollout.
        seed: of all noise.
    """

    inputs: ConditionInputs
    clip_ThwC: np.ndarray
    sigmas: tuple[float, ...]
    steps: int
    seed: int


@dataclass(frozen=True)
class Measured:
    """A world's outputs, float32 on the CPU, by name; `encoded` is the condition that later parts used."""

    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor]
    encoded: ConditionBatch
    compute_dtype: torch.dtype


def drawn_inputs(spec: WorldSpec, slots: int, seed: int) -> tuple[ConditionInputs, np.ndarray]:
    """A smooth picture that moves, held random buttons and a fixed prompt: no file is needed."""
    frames = spec.temporal_factor * (slots - 1) + 1
    height, width = spec.frame_height, spec.frame_width
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    clip = np.empty((frames, height, width, 3), np.uint8)
    for number in range(frames):
        for channel in range(3):
            phase = 2.1 * channel + 0.15 * number + 0.7 * seed
            wave = np.sin(6.3 * rows / height * (channel + 1) + phase) + np.cos(9.4 * columns / width - phase)
            clip[number, :, :, channel] = np.round((wave + 2.0) / 4.0 * 255.0)
    draws = normal(DrawKey(seed, "parity_buttons"), (frames, spec.buttons)).numpy()
    pressed = (draws < np.quantile(draws, PRESS_SHARE)).astype(np.float32)
    held = pressed[np.arange(frames) - np.arange(frames) % HOLD_ROWS]
    return ConditionInputs("parity", clip[0], held, PROMPT, slots), clip


def measure(world: World, plan: ParityPlan, encoded: ConditionBatch | None = None) -> Measured:
    """All outputs of one world.

    Args:
        world: freshly loaded, no mode set.
        plan: what to compute.
        encoded: the other world's encoded condition; None: this world's own.
    """
    with torch.no_grad():
        own = world.encode_conditions([plan.inputs])
        outputs = {
            "encode first frame": own.first_latent_BC1HW,
            "encode text": own.text_BLD,
            "encode clip": world.encode_video(plan.clip_ThwC),
            "action bins": own.action_bins_BfK,
        }
        batch = own if encoded is None else moved(encoded, world.device)
        x_BCfHW = noise_of(plan, batch).to(world.device)
        outputs |= _forwards(world, plan, batch, x_BCfHW)
    gradients = _gradients(world, plan, batch, x_BCfHW)
    on_cpu = {name: value.detach().float().cpu() for name, value in outputs.items()}
    return Measured(on_cpu, gradients, moved(own, torch.device("cpu")), world.compute_dtype)


def compare(first: Measured, second: Measured, tolerances: Mapping[str, float | None]) -> list[GoldenLine]:
    """A line an output: the largest error relative to the first world's largest value.

    Args:
        tolerances: `encode`, `network`, `gradient`; None: by compute dtype.
    """
    coarser = torch.bfloat16 if torch.bfloat16 in (first.compute_dtype, second.compute_dtype) else torch.float32
    allowed = {kind: tolerances.get(kind) or value for kind, value in TOLERANCES[coarser].items()}
    lines = []
    for name, value in first.outputs.items():
        kind = "encode" if name.startswith(("encode", "decode")) else "network"
        tolerance = 0.0 if name == "action bins" else allowed[kind]
        if name == "decode":  # whole levels: values on the edge between two may go either way
            tolerance = max(tolerance, LEVEL)
        comparison = Comparison(tolerance)
        comparison.relative(name, second.outputs[name], value)
        lines.append(comparison.line(name))
    return [*lines, _gradient_line(first.gradients, second.gradients, allowed["gradient"])]


def noise_of(plan: ParityPlan, batch: ConditionBatch) -> Tensor:
    """The same noise for both worlds, [1, C, f, H, W]."""
    _, channels, _, height, width = batch.first_latent_BC1HW.shape
    return normal(DrawKey(plan.seed, "parity_noise"), (1, channels, batch.latent_frames, height, width))


def moved(batch: ConditionBatch, device: torch.device) -> ConditionBatch:
    """A batch on another device."""
    return ConditionBatch(
        batch.condition_ids,
        batch.first_latent_BC1HW.to(device),
        batch.action_bins_BfK.to(device),
        batch.text_BLD.to(device),
    )


def _forwards(world: World, plan: ParityPlan, batch: ConditionBatch, x_BCfHW: Tensor) -> dict[str, Tensor]:
    outputs: dict[str, Tensor] = {}
    states = world.states(batch)
    for sigma in plan.sigmas:
        output = world.velocity(x_BCfHW, torch.tensor([sigma], device=world.device), batch, states)
        outputs[f"velocity, sigma {sigma:g}"] = output.velocity_BCfHW[:, :, 1:]
    outputs["state sequence"] = states.low_BfMS
    outputs["state tokens"] = states.tokens_BNC
    outputs["transition logits"] = world.transition_logits(states, batch)
    clean_BCfHW = solve(
        Euler,
        lambda x, sigma_B: world.velocity(x, sigma_B, batch, states).velocity_BCfHW,
        x_BCfHW,
        sampling_sigmas(plan.steps),
        pin_first_slot(batch.first_latent_BC1HW),
    )
    outputs[f"rollout, {plan.steps} steps"] = clean_BCfHW
    # The first frame's own latent, held over all slots: the same in both worlds, and no noise.
    still_BCfHW = batch.first_latent_BC1HW.expand(-1, -1, batch.latent_frames, -1, -1)
    outputs["decode"] = torch.from_numpy(world.decode(still_BCfHW.float())).float()
    return outputs


def _gradients(world: World, plan: ParityPlan, batch: ConditionBatch, x_BCfHW: Tensor) -> dict[str, Tensor]:
    """Gradients of module B, by the key names of the checkpoint, of one fixed linear function of the velocity."""
    groups = world.set_mode("transition")
    direction = normal(DrawKey(plan.seed, "parity_direction"), x_BCfHW.shape).to(world.device)
    sigma_B = torch.tensor([GRADIENT_SIGMA], device=world.device)
    with world.policies.live_window():
        velocity = world.velocity(x_BCfHW, sigma_B, batch).velocity_BCfHW
        torch.autograd.backward([(velocity * direction)[:, :, 1:].mean()])
    parameters = [parameter for group in groups for parameter in group.parameters]
    names = list(world.export_policy("live"))
    if len(names) != len(parameters):
        raise CheckError(f"{len(names)} exported weights for {len(parameters)} parameters of module B")
    gradients = {}
    for name, parameter in zip(names, parameters, strict=True):
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradients[name] = gradient.detach().float().cpu()
    return gradients


def _gradient_line(first: Mapping[str, Tensor], second: Mapping[str, Tensor], tolerance: float) -> GoldenLine:
    name = "gradients of module B"
    comparison = Comparison(tolerance)
    if first.keys() != second.keys():
        only = sorted(first.keys() ^ second.keys())
        return GoldenLine.failed(name, f"{len(only)} names are in one world only, first {only[0]}")
    # One scale for all: a key's bias has a gradient of 0 up to rounding, whose relative error means nothing.
    joined = [torch.cat([gradients[key].flatten() for key in first]) for gradients in (second, first)]
    comparison.relative(f"{len(first)} parameters", *joined)
    if not bool((joined[1] != 0).any()):
        return GoldenLine.failed(name, "all gradients are exactly 0: the state does not reach the picture")
    return comparison.line(name)
