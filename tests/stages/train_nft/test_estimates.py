"""Estimates at the real sizes: numbers that a person can check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.stages.train_nft import estimates
from stateplay_rl.stages.train_nft.estimates import Evaluations
from stateplay_rl.stages.train_nft.sizes import measure_sizes
from stateplay_rl.stages.train_nft.speeds import H200
from stateplay_rl.stores import layout
from stateplay_rl.worlds.world_files import arena_world
from tests.stages.train_nft.real_world import SHAPE, STAGE_A, real_world


@pytest.fixture
def world() -> WorldConfig:
    return real_world()


def days_of_a(world: WorldConfig, gpus: int = 7, **changes: object) -> float:
    return estimates.days(TrainNftConfig(**changes), world, STAGE_A, 0, gpus=gpus)  # type: ignore[arg-type]


def test_stage_a_on_seven_l20(world: WorldConfig) -> None:
    """112 candidates a batch: 16 a GPU; 30 steps of 0.201 s, a decode and 4 clips, seven times slower than an H200."""
    found = days_of_a(world)
    sampling = 16 * 7 * (30 * 0.201 + 1.10)
    training = 16 * 2 * 7 * (0.841 + 0.616) + 4 * 7 * 0.369
    assert found == pytest.approx(2000 / 28 * (sampling + training) / 86400, rel=0.02)
    assert 6.9 < days_of_a(world, gpus=1) / found < 7.1
    assert days_of_a(world, plan={"gpu": "h200"}) < found / 6


def test_steps_wait_for_the_busiest_rank(world: WorldConfig) -> None:
    """28 samples a step on 8 GPUs: four of them have four, and nobody goes ahead: the training of 7 GPUs."""
    training = 71.43 * 16 * 2 * 7 * (0.841 + 0.616) / 86400
    sampling = 71.43 * (4 * 4 * 7 * (30 * 0.201 + 1.10) + 4 * 7 * 0.369) / 86400
    assert days_of_a(world, gpus=8) == pytest.approx(training + sampling, rel=0.02)


def test_only_what_is_computed_takes_time(world: WorldConfig) -> None:
    """Nothing recomputed: 0.738 and 0.523 s; the cross-entropy alone needs no forward of the video; the penalty one."""
    visits, hours = 2000 / 28 * 16 * 2 * 7 / 86400, pytest.approx
    base = days_of_a(world)
    fast = world.model_copy(update={"gradient_checkpointing": "off"})
    assert base - days_of_a(fast) == hours(visits * (0.841 + 0.616 - 0.738 - 0.523), rel=0.02)
    assert base - days_of_a(world, anchors={"fm_real": 0.0}) == hours(visits * 0.616, rel=0.02)
    assert days_of_a(world, anchors={"reference_penalty": 1e-4}) - base == hours(visits * 0.201, rel=0.02)
    assert base - days_of_a(world, anchors={"anchor_every": 4}) == hours(visits * 0.75 * 0.616, rel=0.02)


def test_a_student_of_full_size_takes_time_and_memory_of_its_own(world: WorldConfig, tmp_path: Path) -> None:
    sizes = measure_sizes(TrainNftConfig(), world, SHAPE)
    stage_c = {"stage": "c", "judge": {"name": "student", "reward_model": tmp_path}}
    config = TrainNftConfig(**stage_c)
    memory = estimates.memory_gib(config, world, sizes, 97, 1)
    here = estimates.peak_gib(memory, student_waits=False)
    waiting = estimates.peak_gib(memory, student_waits=True)
    assert here == pytest.approx(memory["weights"] + memory["training state"] + memory["decoding"] + 24.7)
    assert waiting == pytest.approx(memory["weights"] + memory["training state"] + 24.7)
    assert days_of_a(world, **stage_c) - days_of_a(world) == pytest.approx(71.43 * 4 * 7 * 2.55 / 86400, rel=0.02)
    (tmp_path / layout.STUDENT).write_text(json.dumps({"base": "arena"}))
    assert not estimates.judged_by_big_student(config)
    assert "student" not in estimates.memory_gib(config, world, sizes, 97, 1)


def test_a_taylor_cache_saves_evaluations(world: WorldConfig) -> None:
    """30 steps with one of 3 computed after three of warm-up: 0, 1, 2, 4, 7, ... 28, twelve evaluations."""
    parts = [
        estimates.seconds_of_parts(TrainNftConfig(sampling=sampling), STAGE_A, 0, 7, H200)
        for sampling in ({"cache": "taylor", "cache_every": 3}, {"steps": 12}, {})
    ]
    assert parts[0] == parts[1]
    assert parts[0]["sampling"] == pytest.approx(parts[2]["sampling"] * 12 / 30)
    assert parts[0]["training"] == parts[2]["training"]


def test_memory_fits_the_figures_that_it_comes_from(world: WorldConfig) -> None:
    """Weights about 10 GiB; 16.8 with checkpointing, 39.0 without: the profile's measurements."""
    config = TrainNftConfig()
    sizes = measure_sizes(config, world, SHAPE)
    with_checkpointing = estimates.memory_gib(config, world, sizes, 97, 1)
    without = estimates.memory_gib(config, world.model_copy(update={"gradient_checkpointing": "off"}), sizes, 97, 1)
    assert with_checkpointing["weights"] + with_checkpointing["activations"] == pytest.approx(16.8, abs=0.2)
    assert without["weights"] + without["activations"] == pytest.approx(39.0, abs=0.2)
    shared = config.model_copy(update={"parallel": config.parallel.model_copy(update={"strategy": "sharded"})})
    assert estimates.memory_gib(shared, world, sizes, 97, 4)["weights"] == pytest.approx(
        with_checkpointing["weights"] / 4
    )


def test_evaluations_keep_to_their_budget(world: WorldConfig) -> None:
    """72 batches, every 10: one before, eight on the way or at the end; an API only as its own budget allows."""
    heldout = {"conditions": 16}
    free = TrainNftConfig(judge={"name": "plug_in:Judge"}, heldout=heldout)
    assert estimates.evaluations_of(free, world, STAGE_A) == Evaluations(9)
    for requests, expected in ((0, 0), (15, 0), (40, 2), (10_000, 9)):
        api = TrainNftConfig(heldout=heldout, heldout_requests=requests)
        assert estimates.evaluations_of(api, world, STAGE_A) == Evaluations(expected, expected)
        # Where there is a referee, it judges what the budget does not allow.
        assert estimates.evaluations_of(api, arena_world(), STAGE_A) == Evaluations(9, expected)
    assert estimates.evaluations_of(TrainNftConfig(), world, STAGE_A) == Evaluations()
