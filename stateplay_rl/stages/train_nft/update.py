"""The optimizer steps of one batch: reduce, finite check, norm, clip, step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import OutsideError
from stateplay_rl.stages.train_nft.draws import Visit
from stateplay_rl.stages.train_nft.gradients import SummedGradient, global_gradient
from stateplay_rl.stages.train_nft.loss_sums import LossSums
from stateplay_rl.stages.train_nft.memory import name_memory
from stateplay_rl.stages.train_nft.objective import Objective
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.worlds.base import ParameterGroup
from stateplay_rl.worlds.policy_bank import sha256_tensors

BAD_STEPS_IN_A_ROW = 3


def learning_rate(group: str, config: TrainNftConfig) -> float:
    """The rate of a parameter group; mode `full` has one rate for all of its groups.

    Raises:
        KeyError: a group that no setting names (a bug: the world offers a group that training does not know).
    """
    rates = config.optimizer
    if config.mode == "full":
        return rates.learning_rate_full
    return {"transition": rates.learning_rate_transition, "coupling_lora": rates.learning_rate_coupling}[group]


def build_optimizer(groups: Sequence[ParameterGroup], config: TrainNftConfig) -> torch.optim.AdamW:
    """AdamW over the trained groups, each at its own constant rate; weight decay 0 (the public trainer: 1e-4)."""
    return torch.optim.AdamW(
        [{"params": list(g.parameters), "lr": learning_rate(g.name, config), "name": g.name} for g in groups],
        betas=(config.optimizer.beta1, config.optimizer.beta2),
        eps=config.optimizer.epsilon,
        weight_decay=config.optimizer.weight_decay,
        foreach=False,
        fused=False,
    )


@dataclass
class UpdateStats:
    """What a batch's update measured; norms are means over its applied steps."""

    applied_steps: int = 0
    skipped_steps: int = 0
    sums: LossSums = field(default_factory=LossSums)
    norm_sums: dict[str, float] = field(default_factory=dict)
    ratio_sums: dict[str, float] = field(default_factory=dict)
    zero_share_sum: float = 0.0
    skipped_because: list[str] = field(default_factory=list)

    def mean(self, sums: dict[str, float]) -> dict[str, float]:
        return {name: value / max(self.applied_steps, 1) for name, value in sums.items()}


class Updater:
    """Applies the optimizer steps of batches and counts them.

    Args:
        optimizer_steps: applied steps so far; drives eta and continues over resumes and stages.
    """

    def __init__(
        self,
        objective: Objective,
        groups: Sequence[ParameterGroup],
        config: TrainNftConfig,
        processes: Processes,
    ) -> None:
        self.objective = objective
        self.groups = tuple(groups)
        self.config = config
        self.processes = processes
        self.optimizer = build_optimizer(groups, config)
        self.parameters = [p for g in groups for p in g.parameters]
        self.optimizer_steps = 0
        self.bad_in_a_row = 0

    def scheduler(self) -> dict[str, Any]:
        """The rates: constant, without warm-up; what a scheduler would have to save."""
        rates = {str(group["name"]): float(group["lr"]) for group in self.optimizer.param_groups}
        return {"kind": "constant", "warmup_steps": 0, "steps": self.optimizer_steps, "rates": rates}

    def run(self, steps: Sequence[Sequence[Sample]], batch: int, steps_per_pass: int) -> UpdateStats:
        """All optimizer steps of a batch, in order.

        Args:
            steps: the global samples of every step; see `samples.plan_steps`.
            steps_per_pass: steps of one inner pass; tells the pass that a step belongs to.

        Raises:
            OutsideError: three non-finite steps in a row; live is left as it was before them.
        """
        stats = UpdateStats()
        every = self.config.anchors.anchor_every
        for number, samples in enumerate(steps):
            visit = Visit(batch, number // max(steps_per_pass, 1), anchors=self.optimizer_steps % every == 0)
            with name_memory("train"):
                gradient = global_gradient(self.objective, samples, visit, self.parameters, self.processes)
            if gradient.is_finite:
                self.bad_in_a_row = 0
                # Losses of skipped steps are not numbers: they would spoil the batch's means.
                stats.sums += gradient.sums
                self._apply(gradient, stats)
            else:
                self._skip(gradient, batch, number, stats)
        return stats

    def _apply(self, gradient: SummedGradient, stats: UpdateStats) -> None:
        norm = gradient.norm()
        scale = min(1.0, self.config.optimizer.max_gradient_norm / max(norm, 1e-12))
        before = [p.detach().clone() for p in self.parameters]
        for parameter, value in zip(self.parameters, gradient.gradients, strict=True):
            parameter.grad = value * scale
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer_steps += 1
        stats.applied_steps += 1
        self._check_ranks_agree()
        zeros = sum(int((g == 0).sum()) for g in gradient.gradients)
        stats.zero_share_sum += zeros / max(sum(g.numel() for g in gradient.gradients), 1)
        self._measure(gradient, before, stats)

    def _check_ranks_agree(self) -> None:
        """Every k steps: ranks that took the same steps hold the same weights, to the bit.

        Raises:
            OutsideError: they do not.
        """
        if self.processes.count == 1 or self.optimizer_steps % self.config.parallel.hash_every_steps:
            return
        self.check_ranks_agree()

    def check_ranks_agree(self) -> None:
        """Compare live, old and moments over the ranks now.

        Raises:
            OutsideError: a rank differs; nothing of it has been saved.
        """
        policies = self.objective.world.policies
        state = self.optimizer.state
        moments = {f"{index}": state[p]["exp_avg"].float() for index, p in enumerate(self.parameters) if p in state}
        mine = (policies.sha256("live"), policies.sha256("old"), sha256_tensors(moments))
        hashes = self.processes.gather([mine])
        for name, values in zip(("live", "old", "optimizer"), zip(*hashes, strict=True), strict=True):
            if len(set(values)) != 1:
                raise OutsideError(
                    f"optimizer step {self.optimizer_steps}: the ranks' {name} parameters differ "
                    f"({', '.join(f'rank {rank} {value[:8]}' for rank, value in enumerate(values))})",
                    "nothing of this batch was saved: --resume goes back to the last checkpoint; if it happens "
                    "again, check the GPUs",
                )

    def _measure(self, gradient: SummedGradient, before: Sequence[Tensor], stats: UpdateStats) -> None:
        """Gradient norm and update/weight ratio per parameter group."""
        start = 0
        for group in self.groups:
            end = start + len(group.parameters)
            gradients = gradient.gradients[start:end]
            moved = [p.detach() - b for p, b in zip(group.parameters, before[start:end], strict=True)]
            weight = _norm(before[start:end])
            stats.norm_sums[group.name] = stats.norm_sums.get(group.name, 0.0) + _norm(gradients)
            ratio = _norm(moved) / weight if weight else 0.0
            stats.ratio_sums[group.name] = stats.ratio_sums.get(group.name, 0.0) + ratio
            start = end

    def _skip(self, gradient: SummedGradient, batch: int, number: int, stats: UpdateStats) -> None:
        """All ranks see the same summed gradient, so all skip together."""
        names = [name for group in self.groups for name in group.names]
        layers = (n for n, g in zip(names, gradient.gradients, strict=True) if not bool(torch.isfinite(g).all()))
        layer = next(layers, "the loss")
        stats.skipped_steps += 1
        stats.skipped_because.append(f"step {number}: {layer}, sample {gradient.first_bad_sample or 'unknown'}")
        self.bad_in_a_row += 1
        if self.bad_in_a_row >= BAD_STEPS_IN_A_ROW:
            raise OutsideError(
                f"batch {batch}: {self.bad_in_a_row} non-finite optimizer steps in a row; last: "
                + stats.skipped_because[-1],
                "the last checkpoint is intact: lower the learning rate or use float32 compute, then --resume",
            )


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))
