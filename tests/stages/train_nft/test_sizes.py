"""Sizes at the real scale: numbers that a person can check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.stages.train_nft.sizes import largest_shape, measure_sizes
from tests.stages.train_nft.helpers import write_tiny_conditions
from tests.stages.train_nft.real_world import SHAPE, real_world
from tests.worlds.tiny import FRAMES


def test_parameters_of_the_modes() -> None:
    """A 5B backbone; the coupling LoRA has about 3.19 M parameters at full size.

    An export holds what the LoRA is merged into: q, k, v of 3072 x 256 and out of 256 x 3072 in each of 30 blocks.
    """
    sizes = {
        mode: measure_sizes(TrainNftConfig(mode=mode), real_world(), SHAPE)  # type: ignore[arg-type]
        for mode in ("transition", "coupling", "joint", "full")
    }
    assert sizes["full"].parameters == pytest.approx(5.0e9, rel=0.1)
    assert sizes["full"].trained == sizes["full"].exported == sizes["full"].parameters
    assert sizes["coupling"].trained == pytest.approx(3.19e6, rel=0.01)
    assert sizes["coupling"].exported == 30 * 4 * 3072 * 256
    assert sizes["joint"].trained == sizes["transition"].trained + sizes["coupling"].trained
    assert sizes["transition"].exported == sizes["transition"].trained


def test_bytes_of_a_group() -> None:
    """Latents of a candidate: 48 x 25 x 30 x 52 values of 2 bytes = 3.7 MB. A prompt of 400 characters is about 100
    tokens of 4096 float32 values."""
    sizes = measure_sizes(TrainNftConfig(), real_world(), SHAPE)
    latents = 48 * 25 * 30 * 52 * 2
    assert sizes.candidate_bytes == pytest.approx(latents + 0.06 * 480 * 832 * 97)
    assert sizes.group_bytes == pytest.approx(480 * 832 * (1.6 + 97 * 0.06), rel=0.01)
    assert sizes.encoded_bytes == latents + latents / 25 + 101 * 4096 * 4 + 24 * 4 * 8
    longest = measure_sizes(TrainNftConfig(), real_world(), replace(SHAPE, prompt="x" * 10_000))
    assert longest.encoded_bytes - sizes.encoded_bytes == (512 - 101) * 4096 * 4


def test_the_largest_group_of_a_pass(tmp_path: Path) -> None:
    records = list(write_tiny_conditions(tmp_path).select("pass"))
    records[0] = replace(records[0], frames=2 * FRAMES, prompt="x" * 999, fps=10.0)
    found = largest_shape(records, real_world(), candidates=4)
    assert (found.frames, found.fps, len(found.prompt), found.width) == (2 * FRAMES, 10.0, 999, 832)
    assert found.rows == max(record.action_rows for record in records)
