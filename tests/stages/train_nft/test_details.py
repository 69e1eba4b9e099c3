"""What is measured on one fixed sample: velocities, and gradient norms by part and parameter group."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from stateplay_rl.stages.train_nft.details import gradient_norms, measure_details, velocity_details
from stateplay_rl.stages.train_nft.draws import Visit
from stateplay_rl.stages.train_nft.gradients import global_gradient
from stateplay_rl.stages.train_nft.samples import build_samples
from tests.stages.train_nft.helpers import ONE, Bench, judged, no_anchors


def test_velocities_are_compared_on_one_fixed_sample() -> None:
    bench = Bench()
    sample = bench.samples()[0]
    found = velocity_details(bench.objective, sample, 0)
    assert found["velocity_ratio_reference"] == pytest.approx(1.0)
    assert found["sampler_mismatch"] < 1e-4
    bench.nudge("live", 0.3)
    assert velocity_details(bench.objective, sample, 0)["velocity_ratio_reference"] != pytest.approx(1.0, abs=1e-4)


def test_each_part_has_its_own_norm() -> None:
    bench = Bench(anchors={"reference_penalty": 1e-2})
    bench.nudge("live", 0.1)
    norms = gradient_norms(bench.objective, bench.groups, bench.samples()[0], 0)
    assert set(norms) == {"nft", "fm_real", "transition_real", "reference"}
    assert all(set(by_group) == {"transition"} for by_group in norms.values())
    assert all(value is not None and value > 0 for by_group in norms.values() for value in by_group.values())
    # No gradient is left behind for the next step.
    assert all(parameter.grad is None for parameter in bench.parameters)


def test_the_norm_of_the_nft_part_is_that_of_a_step_without_anchors() -> None:
    bench = Bench()
    bench.nudge("live", 0.1)
    sample = bench.samples()[0]
    alone = Bench(anchors=no_anchors())
    alone.nudge("live", 0.1)
    step = global_gradient(alone.objective, [sample], Visit(0, 0, anchors=False), alone.parameters, ONE)
    norms = gradient_norms(bench.objective, bench.groups, sample, 0)
    assert norms["nft"]["transition"] == pytest.approx(step.norm(), rel=1e-5)


def test_in_coupling_mode_the_cross_entropy_has_no_norm() -> None:
    bench = Bench("coupling")
    assert set(gradient_norms(bench.objective, bench.groups, bench.samples()[0], 0)) == {"nft", "fm_real"}


def test_checkpointed_blocks_give_the_same_norms() -> None:
    plain, recomputing = Bench(), Bench()
    recomputing.world.transformer.checkpointing = "full"
    for bench in (plain, recomputing):
        bench.nudge("live", 0.1)
    first, second = (gradient_norms(b.objective, b.groups, b.samples()[0], 0) for b in (plain, recomputing))
    for part, by_group in first.items():
        assert second[part]["transition"] == pytest.approx(by_group["transition"], rel=1e-5)


def test_a_line_a_rank_with_headline_numbers_of_rank_0() -> None:
    bench = Bench()
    ids = list(bench.inputs)
    bench.inputs |= {"c0": bench.inputs[ids[0]], "c1": bench.inputs[ids[1]]}
    samples = build_samples([judged(0), judged(1)], bench.config, 0)
    found = measure_details(bench.objective, bench.groups, samples, 0, ONE)
    json.dumps(found, allow_nan=False)
    (line,) = found["details"]
    assert (line["rank"], line["sample"]) == (0, "c0/0")
    assert found["sampler_mismatch"] == line["sampler_mismatch"]
    # The second of two ranks looks at another sample, unless weights are sharded.
    second = replace(ONE, rank=1)
    (other,) = measure_details(bench.objective, bench.groups, samples, 0, second)["details"]
    assert other["sample"] == "c0/1"
    (same,) = measure_details(bench.objective, bench.groups, samples, 0, replace(second, lockstep=True))["details"]
    assert same["sample"] == "c0/0"
    assert not torch.is_inference_mode_enabled()
