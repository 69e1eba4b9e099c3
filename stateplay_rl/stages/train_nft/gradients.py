"""Gradients of a set of samples that do not depend on how many ranks share the work.

Each call's gradient is added in float64, and ranks are summed in float64 before the one rounding to float32: the
order of the additions then no longer shows. Calls are cut from the global list of samples, never from a rank's
share, so a call holds the same videos for every number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from stateplay_rl.distributed import Processes
from stateplay_rl.stages.train_nft.draws import Visit
from stateplay_rl.stages.train_nft.loss_sums import LossSums
from stateplay_rl.stages.train_nft.objective import Objective, Prepared
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.worlds.base import StateSequence


@dataclass(frozen=True)
class SummedGradient:
    """The global gradient of the mean loss, float32, a tensor per parameter, and what was measured with it."""

    gradients: tuple[Tensor, ...]
    sums: LossSums
    first_bad_sample: str | None

    @property
    def is_finite(self) -> bool:
        """Whether the step may be taken: no loss and no gradient of any rank was anything but a number."""
        return (
            self.first_bad_sample is None
            and self.sums.is_finite
            and all(bool(torch.isfinite(g).all()) for g in self.gradients)
        )

    def norm(self) -> float:
        """Euclidean norm over all parameters, in float64."""
        return math.sqrt(sum(float(g.double().square().sum()) for g in self.gradients))

    def flat(self) -> Tensor:
        """All gradients as one vector."""
        return torch.cat([g.reshape(-1) for g in self.gradients])


def calls_of(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Cut a global list into calls of at most `size` videos of equal length (97- and 101-frame clips differ)."""
    calls: list[list[Sample]] = []
    for frames in sorted({s.latent_frames for s in samples}):
        alike = [s for s in samples if s.latent_frames == frames]
        calls.extend(alike[start : start + size] for start in range(0, len(alike), size))
    return calls


def global_gradient(
    objective: Objective,
    samples: Sequence[Sample],
    visit: Visit,
    parameters: Sequence[nn.Parameter],
    processes: Processes,
) -> SummedGradient:
    """Gradient of (1/N) sum of the samples' losses, N the global number of samples (and noise levels).

    Ranks without a call take part in the sum with zeros; nothing is duplicated to fill a batch.

    Args:
        samples: the whole optimizer step's samples, the same list on every rank.
    """
    accumulated = [torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in parameters]
    visit = replace(visit, anchor_scale=anchor_scale(objective, samples, visit))
    divisor = len(samples) * objective.visits_per_sample
    calls = calls_of(samples, objective.config.optimizer.samples_per_call)
    levels: list[int | None] = [None]
    if objective.config.loss.full_schedule:
        levels = list(range(objective.visits_per_sample))
    visit = replace(visit, in_step=processes.lockstep)
    turns = processes.turns([(call, level) for call in calls for level in levels])
    if turns:
        objective.draw_ahead(turns[0][0][0], visit, turns[0][0][1])
    step = Step(objective, visit, divisor, tuple(parameters), accumulated, LossSums())
    following = [turn for turn, _ in turns[1:]]
    queued: list[Pending] = []
    for part in _parts(turns, 1 if processes.lockstep else objective.calls_at_once):
        ahead, following = following[: len(part)], following[len(part) :]
        if len(part) > 1:
            queued += step.add_together([turn for turn, _ in part], ahead)
            continue
        ((turn, counts),) = part
        if counts:
            queued.append(step.add(turn, ahead))
        else:
            # Takes part in the collectives of sharded weights; adds nothing.
            nothing = [torch.zeros_like(total) for total in accumulated]
            replace(step, accumulated=nothing, sums=LossSums()).add(turn, ahead)
    # Only now: asking any earlier would make the host wait, and the device for the host.
    bad = [name for call in queued for name in call.bad()]
    return _reduce(accumulated, step.sums, bad, parameters, processes)


def anchor_scale(objective: Objective, samples: Sequence[Sample], visit: Visit) -> float:
    """All samples over those with a real clip: the anchors are then a mean over the samples that have one."""
    if not visit.anchors:
        return 1.0
    with_clip = sum(objective.has_clip(s.condition_id) for s in samples)
    return len(samples) / with_clip if with_clip else 1.0


@dataclass(frozen=True)
class Pending:
    """A call whose work is queued: which of its samples are not finite is known when the device has done it."""

    samples: tuple[Sample, ...]
    loss_B: Tensor
    finite: Tensor

    def bad(self) -> list[str]:
        """The samples that were not finite; waits for the device."""
        named = [f"{s.condition_id}/{s.candidate}" for s in self.samples]
        bad = [name for name, ok in zip(named, torch.isfinite(self.loss_B).tolist(), strict=True) if not ok]
        # A finite loss with a gradient that is not: any sample of the call may be the cause.
        return bad if bad or bool(self.finite) else named


Turn = tuple[list[Sample], int | None]
"""Samples of one call, and their noise level on the sampling grid (None: drawn)."""


def _parts(turns: Sequence[tuple[Turn, bool]], size: int) -> list[list[tuple[Turn, bool]]]:
    """Turns in their order, cut into parts of at most `size` with videos of one length."""
    parts: list[list[tuple[Turn, bool]]] = []
    for turn in turns:
        alike = parts and parts[-1][-1][0][0][0].latent_frames == turn[0][0][0].latent_frames
        if alike and len(parts[-1]) < size:
            parts[-1].append(turn)
        else:
            parts.append([turn])
    return parts


@dataclass(frozen=True)
class Step:
    """One rank's share of an optimizer step, as it is worked off; nothing of it waits for a backward.

    Args:
        visit, divisor: of all calls.
        parameters: what is trained.
        accumulated: float64, a tensor per parameter, to which each call's gradient is added.
        sums: of the losses.
    """

    objective: Objective
    visit: Visit
    divisor: int
    parameters: tuple[nn.Parameter, ...]
    accumulated: Sequence[Tensor]
    sums: LossSums

    def add(self, turn: Turn, ahead: Sequence[Turn]) -> Pending:
        """One call's forwards and backward; the turn that comes next is drawn meanwhile."""
        prepared = self._prepare(turn, ahead)
        with self.objective.world.policies.live_window():
            loss_B = self.objective.backward(prepared, self.sums, self.divisor)
        return Pending(prepared.samples, loss_B, self._collect(loss_B.device))

    def add_together(self, turns: Sequence[Turn], ahead: Sequence[Turn]) -> list[Pending]:
        """Several calls whose state sequences are computed at once: under old, under live, and their backward.

        The calls leave their gradients at the live states, which pass on the sum. One result a call, and one for all.
        """
        world = self.objective.world
        together = self.objective.together([call for call, _ in turns])
        with torch.no_grad(), world.policies.use("old"):
            old = world.states(together.conditions)
        prepared = [
            self._prepare(turn, ahead[n : n + 1], old.select(rows))
            for n, (turn, rows) in enumerate(zip(turns, together.rows, strict=True))
        ]
        found: list[Pending] = []
        with world.policies.live_window():
            live = world.states(together.conditions)
            leaf = live.leaf()
            for call, rows in zip(prepared, together.rows, strict=True):
                chosen = leaf.select(rows)
                own = chosen.leaf()
                loss_B = self.objective.backward_to(own, call, self.sums, self.divisor)
                chosen.backward_from(own)
                finite = self._collect(loss_B.device)
                for grad in (own.low_BfMS.grad, own.tokens_BNC.grad):
                    finite = finite if grad is None else finite & torch.isfinite(grad).all()
                found.append(Pending(call.samples, loss_B, finite))
            live.backward_from(leaf)
        everyone = tuple(sample for call in prepared for sample in call.samples)
        losses = torch.cat([pending.loss_B for pending in found])
        return [*found, Pending(everyone, losses, self._collect(losses.device))]

    def _prepare(self, turn: Turn, ahead: Sequence[Turn], states: StateSequence | None = None) -> Prepared:
        at_hand = () if states is None else (states,)
        prepared = self.objective.prepare(turn[0], self.visit, turn[1], *at_hand)
        for call, level in ahead:
            self.objective.draw_ahead(call, self.visit, level)
        return prepared

    def _collect(self, device: torch.device) -> Tensor:
        """Move the parameters' gradients to the sums; whether they were numbers."""
        finite = torch.ones((), dtype=torch.bool, device=device)
        for parameter, total in zip(self.parameters, self.accumulated, strict=True):
            if parameter.grad is not None:
                finite = finite & torch.isfinite(parameter.grad).all()
                total += parameter.grad
                parameter.grad = None
        return finite


def _reduce(
    accumulated: Sequence[Tensor],
    sums: LossSums,
    bad: list[str],
    parameters: Sequence[nn.Parameter],
    processes: Processes,
) -> SummedGradient:
    """Sum over ranks in float64, then round once."""
    if processes.count > 1:
        packed = torch.tensor(sums.pack(), dtype=torch.float64, device=parameters[0].device)
        flat = torch.cat([*(t.reshape(-1) for t in accumulated), packed])
        processes.sum_(flat)
        sums = LossSums.unpack(flat[-len(packed) :].tolist())
        pieces = torch.split(flat[: -len(packed)], [p.numel() for p in parameters])
        accumulated = [piece.reshape(p.shape) for piece, p in zip(pieces, parameters, strict=True)]
    named = processes.gather(bad)
    return SummedGradient(tuple(t.float() for t in accumulated), sums, named[0] if named else None)
