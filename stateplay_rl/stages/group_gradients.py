"""One policy gradient per group, at the point where a batch's training starts: live = old.

Shapes: N groups, P trained parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from stateplay_rl.distributed import Processes
from stateplay_rl.errors import InputError
from stateplay_rl.nft.signal import gram
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.candidates import condition_inputs
from stateplay_rl.stages.group_source import GroupSource
from stateplay_rl.stages.train_nft.draws import RealClip, Visit
from stateplay_rl.stages.train_nft.gradients import global_gradient
from stateplay_rl.stages.train_nft.objective import Objective
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.worlds.base import ConditionBatch, World

NO_ANCHORS = Visit(batch=0, inner_pass=0, anchors=False)
"""Anchors pull every group the same way: with them the gradients would agree without any signal."""


TIED_R = 0.5


class NonFiniteGradient(InputError):
    """A group's gradient is not finite; the sample is named."""


def usable_groups(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples of every group that pulls somewhere, in order of first appearance.

    A tied group (r = 1/2 throughout) has no gradient but rounding's; gated ones have no samples.
    """
    units: dict[str, list[Sample]] = {}
    for sample in samples:
        units.setdefault(sample.group_id, []).append(sample)
    return [unit for unit in units.values() if any(sample.r != TIED_R for sample in unit)]


class GroupData:
    """What the objective looks up, one group at a time: memory does not grow with the number of groups."""

    def __init__(self, world: World, conditions: ConditionStore, source: GroupSource) -> None:
        self._world = world
        self._conditions = conditions
        self._source = source
        self._encoded: ConditionBatch | None = None

    def conditions_of(self, ids: Sequence[str]) -> ConditionBatch:
        """The one condition of a call, a row per id."""
        if self._encoded is None or self._encoded.condition_ids != tuple(ids[:1]):
            record = self._conditions.by_id(ids[0])
            self._encoded = self._world.encode_conditions([condition_inputs(self._conditions, record, self._world)])
        return self._encoded.select([0] * len(ids))

    def latents_of(self, sample: Sample) -> Tensor:
        """Stored clean latents of a candidate, float32 [C, f, H, W]."""
        return self._source.read(sample.group_id).latents(sample.candidate).float()

    def real_of(self, condition_id: str) -> RealClip | None:
        """Never asked for: anchors are off."""
        raise AssertionError(f"real clip of {condition_id} asked for with anchors off")


def group_gram(
    objective: Objective,
    groups: Sequence[Sequence[Sample]],
    parameters: Sequence[nn.Parameter],
    processes: Processes,
    visit: Visit = NO_ANCHORS,
    draws: int = 1,
) -> Tensor:
    """Inner products of the groups' gradients, float64 [N, N] on the CPU.

    Only this matrix leaves; until it is made, the N vectors are held in float32 on the CPU: 4 N P bytes
    (16 MB for 64 groups of 60,000 parameters, 26 GB for 64 groups of 100 million).

    Args:
        objective: at live = old.
        groups: the samples of each group.
        parameters: the trained ones.
        processes: ranks that share a group's samples.
        visit: whose draws of sigma and noise are used; without anchors.
        draws: visits of every sample whose gradients are summed, from inner pass `visit.inner_pass` on. One is what
            an optimizer step sees; more take the noise of sigma and eps out of the comparison of candidate sets.

    Raises:
        NonFiniteGradient: a gradient is not finite; the sample is named.
    """
    vectors_NP = torch.zeros(len(groups), sum(p.numel() for p in parameters), dtype=torch.float32)
    with Progress("gradients", len(groups), "groups") as progress:
        for row, samples in enumerate(groups):
            for draw in range(draws):
                drawn = replace(visit, inner_pass=visit.inner_pass + draw)
                gradient = global_gradient(objective, samples, drawn, parameters, processes)
                if not gradient.is_finite:
                    where = gradient.first_bad_sample or f"group {samples[0].group_id}"
                    raise NonFiniteGradient(
                        f"the gradient of {where} is not finite",
                        "set compute_dtype to float32 in the world file, or audit the weights: sprl audit-ckpt",
                    )
                vectors_NP[row] += gradient.flat().cpu()
            progress.advance()
    return gram(vectors_NP)
