"""What is too dear for every step: measured on one fixed sample per rank every few batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stateplay_rl.distributed import Processes
from stateplay_rl.nft.forward import without_condition_slot
from stateplay_rl.stages.train_nft.draws import Visit
from stateplay_rl.stages.train_nft.loss_sums import LossSums
from stateplay_rl.stages.train_nft.objective import Objective
from stateplay_rl.stages.train_nft.samples import BatchSamples, Sample
from stateplay_rl.worlds.base import ParameterGroup


def measure_details(
    objective: Objective,
    groups: Sequence[ParameterGroup],
    samples: BatchSamples,
    batch: int,
    processes: Processes,
) -> dict[str, Any]:
    """Velocity ratio, sampler mismatch and gradient norms by part and parameter group.

    The headline numbers are rank 0's, so they do not depend on the number of ranks; `details` holds a line a rank.
    """
    ordered = sorted(samples.samples, key=lambda s: (s.condition_id, s.candidate))
    # With sharded weights all ranks must make the same forwards: then all look at the same sample.
    sample = ordered[0 if processes.lockstep else processes.rank % len(ordered)]
    line: dict[str, Any] = {
        "rank": processes.rank,
        "sample": f"{sample.condition_id}/{sample.candidate}",
        **velocity_details(objective, sample, batch),
        "gradient_norms": gradient_norms(objective, groups, sample, batch),
    }
    lines = processes.gather([line])
    return {
        "velocity_ratio_reference": lines[0]["velocity_ratio_reference"],
        "sampler_mismatch": lines[0]["sampler_mismatch"],
        "details": lines,
    }


@torch.no_grad()
def velocity_details(objective: Objective, sample: Sample, batch: int) -> dict[str, float]:
    """||v_live|| / ||v_reference||, and trainer's against sampler's v on the same input."""
    prepared = objective.prepare([sample], Visit(batch, 0, anchors=False), None)
    noised, conditions, world = prepared.sample, prepared.conditions, objective.world
    v_live = world.velocity(noised.x_sigma, noised.sigma_B, conditions).velocity_BCfHW
    with world.policies.use("reference"):
        v_reference = world.velocity(noised.x_sigma, noised.sigma_B, conditions).velocity_BCfHW
    # The sampler computes states once and evaluates several candidates in one call.
    repeated = conditions.select([0, 0])
    states = world.states(repeated)
    v_sampler = world.velocity(
        noised.x_sigma.expand(2, *noised.x_sigma.shape[1:]), noised.sigma_B.expand(2), repeated, states
    ).velocity_BCfHW[:1]
    return {
        "velocity_ratio_reference": _velocity_norm(v_live) / _velocity_norm(v_reference),
        "sampler_mismatch": _velocity_norm(v_live.float() - v_sampler.float()) / _velocity_norm(v_live),
    }


def gradient_norms(
    objective: Objective, groups: Sequence[ParameterGroup], sample: Sample, batch: int
) -> Mapping[str, Mapping[str, float | None]]:
    """Norm of every weighted part's gradient by parameter group; None where a norm is not finite."""
    parameters = [p for group in groups for p in group.parameters]
    prepared = objective.prepare([sample], Visit(batch, 0, anchors=True), None)
    norms: dict[str, dict[str, float | None]] = {}
    with objective.world.policies.live_window():
        for part, loss_B in objective.parts(prepared, LossSums()).items():
            if not loss_B.requires_grad:
                continue
            gradients = torch.autograd.grad(loss_B.sum(), parameters, retain_graph=True, allow_unused=True)
            norms[part] = _by_group(groups, gradients)
    return norms


def _by_group(groups: Sequence[ParameterGroup], gradients: Sequence[Tensor | None]) -> dict[str, float | None]:
    norms: dict[str, float | None] = {}
    start = 0
    for group in groups:
        own = gradients[start : start + len(group.parameters)]
        start += len(group.parameters)
        squared = sum((g.double().square().sum() for g in own if g is not None), torch.zeros((), dtype=torch.float64))
        norm = float(squared) ** 0.5
        norms[group.name] = norm if norm < float("inf") else None
    return norms


def _velocity_norm(velocity_BCfHW: Tensor) -> float:
    return float(without_condition_slot(velocity_BCfHW).double().norm())
