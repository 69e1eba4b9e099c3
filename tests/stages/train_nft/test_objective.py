"""The loss of a call: what it trains, what it leaves out, which draws it makes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stateplay_rl.stages.train_nft.draws import Visit
from stateplay_rl.stages.train_nft.loss_sums import PARTS, LossSums
from stateplay_rl.stages.train_nft.objective import Objective
from tests.stages.train_nft.helpers import Bench, no_anchors

PLAIN = Visit(0, 0, anchors=False)
ANCHORED = Visit(0, 0, anchors=True)


def losses(bench: Bench, samples, visit: Visit = PLAIN, sums: LossSums | None = None) -> Tensor:
    prepared = bench.objective.prepare(samples, visit, None)
    with bench.world.policies.live_window():
        return bench.objective.losses(prepared, LossSums() if sums is None else sums)


def gradients(bench: Bench, loss: Tensor) -> dict[str, Tensor]:
    with bench.world.policies.live_window():
        loss.backward()
    return {n: p.grad for n, p in bench.world.transformer.named_parameters() if p.grad is not None}


def test_nft_alone_trains_module_b_and_nothing_else() -> None:
    bench = Bench(anchors=no_anchors())
    found = gradients(bench, losses(bench, bench.samples()).sum())
    names = set(bench.groups[0].names)
    assert names
    assert set(found) <= names
    moved = {name for name, gradient in found.items() if bool(gradient.any())}
    assert len(moved) > 0.8 * len(names)
    assert all(name.startswith("latent_state_rollout.transition.") for name in moved)


def test_at_equal_policies_and_r_of_a_half_nothing_pulls() -> None:
    """At v_live = v_old the gradient is proportional to r - 1/2."""
    bench = Bench(anchors=no_anchors())
    strong = gradients(bench, losses(bench, bench.samples(2, r=(1.0, 1.0))).sum())
    size = sum(float(g.abs().sum()) for g in strong.values())
    for parameter in bench.parameters:
        parameter.grad = None
    weak = gradients(bench, losses(bench, bench.samples(2, r=(0.5, 0.5))).sum())
    assert size > 0
    assert sum(float(g.abs().sum()) for g in weak.values()) < 1e-4 * size


def test_coupling_mode_never_computes_the_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(mode="coupling")

    def refuse(*arguments: object) -> Tensor:
        raise AssertionError("the cross-entropy has no gradient in this mode")

    monkeypatch.setattr(bench.world, "transition_logits", refuse)
    sums = LossSums()
    losses(bench, bench.samples(), ANCHORED, sums)
    means = sums.means()
    assert means["transition_real"] is None
    assert means["fm_real"] is not None


@pytest.mark.parametrize("mode", ["transition", "joint", "full"])
def test_other_modes_report_the_cross_entropy(mode: str) -> None:
    bench = Bench(mode=mode)
    sums = LossSums()
    losses(bench, bench.samples(2), ANCHORED, sums)
    # 512 codes: a random predictor is near log(512) = 6.2 nats.
    assert sums.means()["transition_real"] == pytest.approx(6.2, abs=1.5)


def test_samples_without_a_clip_have_no_anchor_and_are_not_counted() -> None:
    bench = Bench()
    samples = bench.samples()
    bench.no_clip = {samples[0].condition_id}
    sums = LossSums()
    anchored = losses(bench, samples, ANCHORED, sums).detach()
    plain = losses(bench, samples, PLAIN).detach()
    assert (sums.counts["fm_real"], sums.counts["transition_real"], sums.counts["nft"]) == (2, 2, 4)
    assert torch.equal(anchored[:2], plain[:2])
    assert bool((anchored[2:] > plain[2:]).all())
    bench.no_clip = set(bench.inputs)
    nothing = LossSums()
    losses(bench, samples, ANCHORED, nothing)
    assert nothing.means()["fm_real"] is None
    assert nothing.means()["transition_real"] is None


def test_the_total_is_the_weighted_sum_of_its_parts() -> None:
    bench = Bench(anchors={"fm_real": 0.3, "transition_real": 0.2, "reference_penalty": 0.5})
    bench.nudge("live")
    sums = LossSums()
    losses(bench, bench.samples(), ANCHORED, sums)
    parts = sums.means()
    expected = parts["nft"] + 0.3 * parts["fm_real"] + 0.2 * parts["transition_real"] + 0.5 * parts["reference"]
    assert parts["total"] == pytest.approx(expected, rel=1e-5)


def test_the_loss_reacts_when_only_old_changes() -> None:
    bench = Bench(anchors=no_anchors())
    samples = bench.samples()
    before = losses(bench, samples).detach()
    live = bench.world.policies.sha256("live")
    bench.nudge("old")
    after = losses(bench, samples).detach()
    assert bench.world.policies.sha256("live") == live
    assert not torch.allclose(before, after, rtol=1e-4)


def test_the_reference_penalty_is_zero_at_the_reference_and_grows_with_distance() -> None:
    bench = Bench(anchors=no_anchors(reference_penalty=1.0))
    at_reference, away = LossSums(), LossSums()
    losses(bench, bench.samples(2), PLAIN, at_reference)
    bench.nudge("live")
    losses(bench, bench.samples(2), PLAIN, away)
    assert at_reference.means()["reference"] == pytest.approx(0.0, abs=1e-12)
    assert away.means()["reference"] > 1e-6
    off = LossSums()
    losses(Bench(), Bench().samples(2), PLAIN, off)
    assert off.means()["reference"] is None


@pytest.mark.parametrize("shared", [True, False])
def test_noise_of_a_group_is_shared_when_asked(shared: bool) -> None:
    bench = Bench(loss={"shared_group_noise": shared}, sampling={"candidates": 2, "steps": 50})
    noised = bench.objective.prepare(bench.samples(), PLAIN, None).sample
    assert torch.equal(noised.eps[0], noised.eps[1]) is shared
    assert torch.equal(noised.sigma_B[0], noised.sigma_B[1]) is shared
    assert not torch.equal(noised.eps[0], noised.eps[2])


def test_draws_belong_to_the_sample_and_the_visit_not_to_the_call() -> None:
    bench = Bench()
    samples = bench.samples()
    together = bench.objective.prepare(samples, PLAIN, None).sample
    alone = bench.objective.prepare([samples[2]], PLAIN, None).sample
    assert torch.equal(together.x_sigma[2], alone.x_sigma[0])
    for other in (Visit(1, 0, anchors=False), Visit(0, 1, anchors=False)):
        assert not torch.equal(bench.objective.prepare([samples[2]], other, None).sample.eps, alone.eps)


def test_slot_0_holds_the_condition_and_latents_are_noised_by_their_sigma() -> None:
    bench = Bench()
    prepared = bench.objective.prepare(bench.samples(2), PLAIN, 1)
    noised = prepared.sample
    assert torch.equal(noised.x_sigma[:, :, :1], prepared.conditions.first_latent_BC1HW)
    sigma = float(bench.objective.sigmas[1])
    expected = (1 - sigma) * noised.x0 + sigma * noised.eps
    assert torch.allclose(noised.x_sigma[:, :, 1:], expected[:, :, 1:], atol=1e-6)


def test_losses_are_sorted_into_thirds_of_the_grid() -> None:
    bench = Bench(anchors=no_anchors())
    for position, name in enumerate(("high", "mid", "low")):
        sums = LossSums()
        prepared = bench.objective.prepare(bench.samples(2), PLAIN, position)
        with bench.world.policies.live_window():
            bench.objective.losses(prepared, sums)
        assert [n for n, value in sums.by_sigma().items() if value is not None] == [name]


def test_the_papers_form_differs_from_the_normalised_one() -> None:
    plain = Bench(anchors=no_anchors())
    paper = Bench(anchors=no_anchors(), loss={"form": "paper_velocity_mse"})
    for bench in (plain, paper):
        bench.nudge("live")
    a, b = (losses(bench, bench.samples(2)).detach() for bench in (plain, paper))
    assert bool(torch.isfinite(b).all())
    assert not torch.allclose(a, b, rtol=1e-2)


def test_sums_survive_the_trip_between_ranks() -> None:
    sums = LossSums()
    sums.add("nft", torch.tensor([1.0, 2.0]))
    sums.sigma_sums[1], sums.sigma_counts[1] = 3.0, 2.0
    back = LossSums.unpack(sums.pack())
    assert back == sums
    back += sums
    assert back.sums["nft"] == 6.0
    assert back.means()["nft"] == 1.5
    assert set(back.means()) == set(PARTS)
    assert back.by_sigma() == {"high": None, "mid": 1.5, "low": None}


def test_full_schedule_has_a_visit_per_sigma() -> None:
    assert Bench(loss={"full_schedule": True}).objective.visits_per_sample == 3
    assert Bench().objective.visits_per_sample == 1
    assert isinstance(Bench().objective, Objective)
