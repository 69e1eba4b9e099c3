"""The loaded world before a long run: gradients in the three modes, at the real shapes; and what it costs.

Shapes: B batch, C latent channels, f latent slots, H W latent size.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from stateplay_rl.checks.lines import require
from stateplay_rl.config.train_nft import LossConfig
from stateplay_rl.errors import CheckError
from stateplay_rl.evaluation.picture import PictureDrift
from stateplay_rl.nft.forward import noised
from stateplay_rl.nft.loss import nft_loss
from stateplay_rl.nft.randomness import DrawKey, normal
from stateplay_rl.worlds.base import ConditionBatch, ParameterMode, World

_HEALTH = "look for NaN in the weights: sprl audit-ckpt --scan"
SIGMA = 0.7
MODES: tuple[ParameterMode, ...] = ("transition", "coupling", "joint")
FULLEST = 0.95
"""Peak over this share of a device's memory is refused: fragmentation and longer clips take the rest."""


def visit(world: World, mode: ParameterMode, batch: ConditionBatch, loss: LossConfig) -> Mapping[str, float]:
    """One NFT visit under live = old, forward and backward, as training makes it; gradients are cleared again.

    Args:
        world: freshly loaded, in no other mode.
        mode: the parameters that are trained.
        batch: one encoded condition per sample.
        loss: the run's settings.

    Returns:
        Gradient norm by parameter group.

    Raises:
        CheckError: a loss or gradient that is not finite, or a group that gets none.
    """
    groups = world.set_mode(mode)
    _, channels, _, height, width = batch.first_latent_BC1HW.shape
    shape = (len(batch), channels, batch.latent_frames, height, width)
    x0, eps = (normal(DrawKey(0, f"preflight_{name}"), shape).to(world.device) for name in ("x0", "eps"))
    sigma_B = torch.full((len(batch),), SIGMA, device=world.device)
    noisy = noised(x0, eps, sigma_B, batch.first_latent_BC1HW.float())
    with torch.no_grad(), world.policies.use("old"):
        v_old = world.velocity(noisy.x_sigma, sigma_B, batch).velocity_BCfHW.float()
    r_B = torch.ones(len(batch), device=world.device)  # at r of a half the gradient is exactly 0
    with world.policies.live_window():
        v_live = world.velocity(noisy.x_sigma, sigma_B, batch).velocity_BCfHW.float()
        result = nft_loss(
            noisy,
            v_live,
            v_old,
            r_B,
            beta_nft=loss.beta_nft,
            advantage_clip=loss.advantage_clip,
            has_condition_slot=True,
        )
        value = result.loss_per_sample.sum()
        number = value.detach().item()
        require(math.isfinite(number), f"mode {mode}: the loss is {number}", _HEALTH)
        torch.autograd.backward([value])
    norms = {}
    for group in groups:
        gradients = [p.grad.float() for p in group.parameters if p.grad is not None]
        total = sum(float(g.square().sum()) for g in gradients)
        require(math.isfinite(total), f"mode {mode}: gradient of {group.name} is not finite", _HEALTH)
        if total == 0.0:
            raise CheckError(
                f"mode {mode}: no gradient reaches {group.name}",
                "its gates are closed or it is not coupled: see the audit's coverage",
            )
        norms[group.name] = total**0.5
        for parameter in group.parameters:
            parameter.grad = None
    return norms


@dataclass(frozen=True)
class Memory:
    """Peak and size of the device's memory, bytes."""

    device: str
    peak: int
    total: int

    def line(self) -> str:
        """In words.

        Raises:
            CheckError: too full.
        """
        text = f"peak {self.peak / 2**30:.2f} of {self.total / 2**30:.1f} GiB on {self.device}"
        if self.peak > FULLEST * self.total:
            raise CheckError(
                f"{text}: more than {FULLEST:.0%}",
                "lower sampling.candidates_per_call or optimizer.samples_per_call, or set parallel.strategy=sharded",
            )
        return text


def memory_of(device: torch.device) -> Memory:
    """What this process took at most so far, and what there is."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return Memory(str(device), torch.cuda.max_memory_allocated(device), total)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return Memory("the CPU", peak, _machine_bytes())


def _machine_bytes() -> int:
    """Memory of the machine, or of this process's control group where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(text)) if text.isdigit() else total


def picture_problems(drift: PictureDrift, luma_levels: float, motion_share: float) -> Sequence[str]:
    """How the world's own videos depart from the real clips, by the alarms' thresholds.

    Args:
        luma_levels: largest difference of mean luma, 0..255.
        motion_share: motion below this share of the real one, or above its inverse, is a problem.
    """
    problems = []
    shift = drift.generated["luma"] - drift.real["luma"]
    if abs(shift) > luma_levels:
        problems.append(f"mean luma departs by {shift:+.1f} levels")
    motion = drift.ratio["motion"]
    if motion is not None and not motion_share <= motion <= 1 / motion_share:
        problems.append(f"motion is {motion:.2f} of the real clips'")
    return problems
