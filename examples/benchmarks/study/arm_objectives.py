"""Objectives of the controls, in the place of the NFT loss on the stage's own trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stateplay_rl.nft.flow_matching import flow_matching_loss
from stateplay_rl.nft.forward import Noised
from stateplay_rl.stages.train_nft.draws import Visit
from stateplay_rl.stages.train_nft.loss_sums import LossSums
from stateplay_rl.stages.train_nft.objective import Objective, RealInputs
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.worlds.base import ConditionBatch, StateSequence


@dataclass(frozen=True)
class PreparedSamples:
    """One call's inputs; `sample` is None where only real clips train."""

    samples: tuple[Sample, ...]
    visit: Visit
    conditions: ConditionBatch
    sample: Noised | None
    real: RealInputs | None


class BestOfObjective(Objective):
    """Rejection fine-tuning: flow matching on the candidates that it is given, the best of each group.

    Noise levels are those of the sampling grid, as for NFT; anchors are the stage's own.
    """

    @torch.no_grad()
    def prepare(self, samples: Sequence[Sample], visit: Visit, sigma_index: int | None) -> PreparedSamples:  # type: ignore[override]
        """Noised candidates; no other policy is asked."""
        conditions = self._conditions_of([s.condition_id for s in samples])
        sample, _ = self._noised(samples, visit, sigma_index, conditions)
        real = self._real_inputs(samples, visit, conditions) if visit.anchors else None
        return PreparedSamples(tuple(samples), visit, conditions, sample, real)

    def _policy(self, prepared: PreparedSamples, states: StateSequence, sums: LossSums) -> dict[str, Tensor]:  # type: ignore[override]
        """Mean squared error of the velocity, named `nft` in the logs: it takes the place of the policy loss."""
        sample = prepared.sample
        assert sample is not None
        velocity = self.world.velocity(sample.x_sigma, sample.sigma_B, prepared.conditions, states).velocity_BCfHW
        loss_B = flow_matching_loss(sample, velocity, torch.ones_like(sample.sigma_B), has_condition_slot=True)
        sums.add("nft", loss_B)
        return {"nft": loss_B}


class SupervisedObjective(Objective):
    """Continued SFT: the stage's anchors, and nothing else; `anchors.anchor_every` must be 1."""

    def draw_ahead(self, samples: Sequence[Sample], visit: Visit, sigma_index: int | None) -> None:
        """Nothing: its draws are few."""

    @torch.no_grad()
    def prepare(self, samples: Sequence[Sample], visit: Visit, sigma_index: int | None) -> PreparedSamples:  # type: ignore[override]
        """The samples' real clips, noised."""
        conditions = self._conditions_of([s.condition_id for s in samples])
        return PreparedSamples(tuple(samples), visit, conditions, None, self._real_inputs(samples, visit, conditions))

    def _policy(self, prepared: PreparedSamples, states: StateSequence, sums: LossSums) -> dict[str, Tensor]:  # type: ignore[override]
        """Nothing: flow matching and transition cross-entropy are the anchors' parts."""
        return {}


def best_of_groups(samples: Sequence[Sample]) -> list[Sample]:
    """The candidate with the highest r of every group, the first of equals, in the groups' order."""
    best: dict[str, Sample] = {}
    for sample in samples:
        kept = best.get(sample.group_id)
        if kept is None or sample.r > kept.r:
            best[sample.group_id] = sample
    return list(best.values())
