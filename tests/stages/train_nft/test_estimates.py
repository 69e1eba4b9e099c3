"""Estimates at the real sizes: numbers that a person can check."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import WorldConfig, WorldFiles
from stateplay_rl.stages.train_nft import estimates
from stateplay_rl.stages.train_nft.segments import SegmentPlan

STAGE_A = SegmentPlan("a", 0, 0, 2000, 28)


@pytest.fixture
def world() -> WorldConfig:
    file = Path("weights.safetensors")
    files = WorldFiles(
        checkpoint=(file,), transition_tokenizer=file, vae=file, text_encoder=file, text_tokenizer=Path("t.json")
    )
    return WorldConfig(name="real", preset="stateplay-5b", files=files)


def test_parameters_of_the_modes(world: WorldConfig) -> None:
    """A 5B backbone; the coupling LoRA has about 3.19 M parameters at full size."""
    sizes = {
        mode: estimates.measure_sizes(TrainNftConfig(mode=mode), world, 97)  # type: ignore[arg-type]
        for mode in ("transition", "coupling", "joint", "full")
    }
    assert sizes["full"].parameters == pytest.approx(5.0e9, rel=0.1)
    assert sizes["full"].trained == sizes["full"].parameters
    assert sizes["coupling"].trained == pytest.approx(3.19e6, rel=0.01)
    assert sizes["joint"].trained == sizes["transition"].trained + sizes["coupling"].trained


def test_stage_a_on_seven_l20(world: WorldConfig) -> None:
    """112 candidates a batch: 16 a GPU; 30 steps of 0.22 s and a decode, seven times slower than an H200."""
    config = TrainNftConfig(plan={"gpu": "l20"})
    found = estimates.days(config, world, STAGE_A, 0, gpus=7)
    sampling = 16 * 7 * (30 * 0.22 + 1.5)
    training = 16 * 2 * 7 * (0.96 + 0.72)
    assert found == pytest.approx(2000 / 28 * (sampling + training) / 86400, rel=0.02)
    one = estimates.days(config, world, STAGE_A, 0, gpus=1)
    assert 6.9 < one / found < 7.1
    assert estimates.days(TrainNftConfig(plan={"gpu": "h200"}), world, STAGE_A, 0, gpus=7) < found / 6


def test_memory_fits_the_figures_that_it_comes_from(world: WorldConfig) -> None:
    """Weights about 10 GB; 13.6 GiB with checkpointing, about 38.5 without: performance.md's measurements."""
    config = TrainNftConfig()
    sizes = estimates.measure_sizes(config, world, 97)
    with_checkpointing = estimates.memory_gib(config, world, sizes, 97, 1)
    without = estimates.memory_gib(config, world.model_copy(update={"gradient_checkpointing": "off"}), sizes, 97, 1)
    assert with_checkpointing["weights"] + with_checkpointing["activations"] == pytest.approx(13.6, abs=1.0)
    assert without["weights"] + without["activations"] == pytest.approx(38.5, abs=3.0)
    shared = config.model_copy(update={"parallel": config.parallel.model_copy(update={"strategy": "sharded"})})
    assert estimates.memory_gib(shared, world, sizes, 97, 4)["weights"] == pytest.approx(
        with_checkpointing["weights"] / 4
    )


def test_disk_of_stage_a(world: WorldConfig) -> None:
    """Latents of a candidate: 48 x 25 x 30 x 52 values of 2 bytes = 3.7 MB; a request keeps about 10 MB of JPEGs."""
    config = TrainNftConfig()
    sizes = estimates.measure_sizes(config, world, 97)
    assert sizes.encoded_bytes == 48 * 25 * 30 * 52 * 2
    parts = estimates.disk_bytes(config, sizes, STAGE_A, evaluations=0)
    assert parts["groups"] == 8000 * sizes.candidate_bytes
    assert parts["request images"] == pytest.approx(20e9, rel=0.1)
    assert parts["checkpoints"] == 5 * 4 * 4 * sizes.trained


def test_evaluations_keep_to_their_budget() -> None:
    """72 batches, every 10: one before, eight on the way or at the end; an API only as its own budget allows."""
    heldout = {"conditions": 16}
    free = TrainNftConfig(judge={"name": "referee"}, heldout=heldout)
    assert estimates.evaluations_of(free, STAGE_A) == 9
    for requests, expected in ((0, 0), (15, 0), (40, 2), (10_000, 9)):
        api = TrainNftConfig(heldout=heldout, heldout_requests=requests)
        assert estimates.evaluations_of(api, STAGE_A) == expected
    assert estimates.evaluations_of(TrainNftConfig(), STAGE_A) == 0
