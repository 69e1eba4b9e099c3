"""bf16 compute with float32 masters: 200 steps against a float64 reference of live and old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from stateplay_rl.nft.old_policy import weight_on_old
from stateplay_rl.stages.train_nft.gradients import SummedGradient
from stateplay_rl.stages.train_nft.update import Updater
from tests.stages.train_nft.helpers import ONE, Bench
from tests.worlds.tiny import tiny_world

pytestmark = pytest.mark.slow
STEPS, STEPS_PER_BATCH = 200, 10
RATE, BETAS, EPSILON, LARGEST_NORM = 2e-5, (0.9, 0.999), 1e-8, 1.0


@dataclass
class Reference:
    """AdamW with clipping and the old policy's decay, written down from the papers, in one dtype throughout."""

    live: list[Tensor]
    old: list[Tensor] = field(init=False)
    first: list[Tensor] = field(init=False)
    second: list[Tensor] = field(init=False)
    steps: int = 0

    def __post_init__(self) -> None:
        self.old = [p.clone() for p in self.live]
        self.first = [torch.zeros_like(p) for p in self.live]
        self.second = [torch.zeros_like(p) for p in self.live]

    def step(self, gradients: Sequence[Tensor]) -> None:
        dtype = self.live[0].dtype
        norm = sum(float(g.double().square().sum()) for g in gradients) ** 0.5
        scale = min(1.0, LARGEST_NORM / norm)
        self.steps += 1
        one, two = (1 - beta**self.steps for beta in BETAS)
        for p, m, v, g in zip(self.live, self.first, self.second, gradients, strict=True):
            g = (g.double() * scale).to(dtype)
            m.mul_(BETAS[0]).add_(g, alpha=1 - BETAS[0])
            v.mul_(BETAS[1]).add_(g * g, alpha=1 - BETAS[1])
            p.sub_(RATE * (m / one) / ((v / two).sqrt() + EPSILON))

    def follow(self) -> None:
        eta = weight_on_old(self.steps)
        for old, live in zip(self.old, self.live, strict=True):
            old.mul_(eta).add_(live, alpha=1 - eta)


def bench_of(compute: torch.dtype) -> Bench:
    bench = Bench(optimizer={"samples_per_step": 1, "inner_epochs": 1, "learning_rate_transition": RATE})
    bench.world = tiny_world(compute_dtype=compute)
    bench.groups = bench.world.set_mode("transition")
    bench.parameters = [p for group in bench.groups for p in group.parameters]
    bench.objective.world = bench.world
    bench.updater = Updater(bench.objective, bench.groups, bench.config, ONE)
    return bench


def train(bench: Bench, references: Sequence[Reference]) -> None:
    """200 steps in 20 batches; every reference gets the very gradients that were applied."""
    apply: Any = bench.updater._apply
    samples = bench.samples(8, r=(1.0, 0.0, 0.9, 0.2, 0.7, 0.4, 0.0, 1.0))

    def spy(gradient: SummedGradient, stats: Any) -> None:
        for reference in references:
            reference.step(gradient.gradients)
        apply(gradient, stats)

    bench.updater._apply = spy  # type: ignore[method-assign]
    for batch in range(STEPS // STEPS_PER_BATCH):
        steps = [[samples[(batch + k) % len(samples)]] for k in range(STEPS_PER_BATCH)]
        bench.updater.run(steps, batch, len(steps))
        bench.world.policies.update_old(weight_on_old(bench.updater.optimizer_steps))
        for reference in references:
            reference.follow()


def values(bench: Bench, policy: str) -> list[Tensor]:
    state = bench.world.policies.state(policy)  # type: ignore[arg-type]
    return [state[name].double() for group in bench.groups for name in group.names]


def far(found: Sequence[Tensor], wanted: Sequence[Tensor], start: Sequence[Tensor]) -> float:
    """Error over the way that was gone."""
    error = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(found, wanted, strict=True))
    way = sum(float((b.double() - c).square().sum()) for b, c in zip(wanted, start, strict=True))
    return float((error / way) ** 0.5)


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    bench = bench_of(torch.bfloat16)
    start = values(bench, "live")
    exact = Reference([p.clone() for p in start])
    coarse = Reference([p.bfloat16() for p in start])
    train(bench, (exact, coarse))
    return {"bench": bench, "start": start, "exact": exact, "coarse": coarse}


def test_live_and_old_track_float64_over_200_steps(trained: dict[str, Any]) -> None:
    bench, start, exact = trained["bench"], trained["start"], trained["exact"]
    assert bench.updater.optimizer_steps == exact.steps == STEPS
    assert far(values(bench, "live"), exact.live, start) < 1e-3
    assert far(values(bench, "old"), exact.old, start) < 1e-3
    # eta is 0.2 at the end: old is neither live nor where it began.
    assert far(exact.old, exact.live, start) > 1e-3


def test_masters_in_bfloat16_would_not(trained: dict[str, Any]) -> None:
    """The test above can fail: at this rate a bfloat16 master loses most of the way."""
    start, exact, coarse = (trained[name] for name in ("start", "exact", "coarse"))
    assert far(coarse.live, exact.live, start) > 0.3
    assert far(coarse.old, exact.old, start) > 0.3


def test_bf16_compute_goes_the_way_of_float32_compute(trained: dict[str, Any]) -> None:
    """Other gradients in their last bits, the same direction over 200 steps."""
    precise = bench_of(torch.float32)
    train(precise, ())
    start = trained["start"]
    ways = [
        torch.cat([(p - s).reshape(-1) for p, s in zip(values(bench, "live"), start, strict=True)])
        for bench in (trained["bench"], precise)
    ]
    assert float(torch.nn.functional.cosine_similarity(*ways, dim=0)) > 0.9
