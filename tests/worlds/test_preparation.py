"""First frames, held buttons, bins and prompts, against values computed with the public code."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import load_file

from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.worlds.preparation import (
    BLANK_PROMPT,
    action_bin_edges,
    bin_actions,
    clean_prompt,
    hold_actions,
    is_blank,
    prepare_first_frame,
    usable_frames,
)
from tests.conditions.clip_factory import real_clips

GOLDEN = Path(__file__).parents[1] / "golden"
FIRST_FRAMES = json.loads((GOLDEN / "first_frames.json").read_text())
needs_clips = pytest.mark.skipif(not real_clips().is_dir(), reason="the real clips are not here")


@needs_clips
@pytest.mark.parametrize("clip", sorted(FIRST_FRAMES))
def test_first_frames_are_those_of_the_public_code(clip: str) -> None:
    with Image.open(real_clips() / clip / "first_frame.png") as image:
        frame = prepare_first_frame(image, 832, 480)
    assert frame.shape == (480, 832, 3)
    assert hashlib.sha256(frame.tobytes()).hexdigest() == FIRST_FRAMES[clip]["sha256"]


@pytest.mark.parametrize("size", [(832, 480), (384, 224), (480, 832), (100, 480), (833, 481), (16, 16)])
def test_any_picture_covers_the_frame(size: tuple[int, int]) -> None:
    grey = Image.new("L", size, 77)
    frame = prepare_first_frame(grey, 832, 480)
    assert frame.dtype == np.uint8
    assert frame.shape == (480, 832, 3)
    # No border of another colour: the picture covers the whole frame.
    assert np.all(frame == 77)


def test_picture_of_the_right_size_is_not_touched() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8)
    assert np.array_equal(prepare_first_frame(Image.fromarray(pixels), 96, 64), pixels)


@pytest.mark.parametrize("clip", sorted(FIRST_FRAMES))
@pytest.mark.parametrize("rows", [100, 97])
@pytest.mark.parametrize("bins", [25, 26])
def test_bins_of_the_held_signal_are_golden(clip: str, rows: int, bins: int) -> None:
    golden = load_file(GOLDEN / "action_bins.safetensors")
    held = golden[f"{clip}/rows{rows}.held"]
    assert np.array_equal(bin_actions(held, bins), golden[f"{clip}/rows{rows}.bins{bins}"])


@needs_clips
@pytest.mark.parametrize("clip", sorted(FIRST_FRAMES))
@pytest.mark.parametrize("rows", [100, 97])
def test_held_signal_of_real_tables_is_golden(clip: str, rows: int) -> None:
    golden = load_file(GOLDEN / "action_bins.safetensors")
    columns = pq.read_table(real_clips() / clip / "actions.parquet", columns=list(BUTTONS))
    raw = np.stack([columns[name].to_numpy() for name in BUTTONS], axis=1)[:rows]
    result = hold_actions(raw, 10)
    assert result.dropped_presses == 0
    assert result.held_RK.dtype == np.float32
    assert np.array_equal(result.held_RK, golden[f"{clip}/rows{rows}.held"])


def test_hold_repeats_row_zero_and_counts_what_it_drops() -> None:
    """Rows 0-3 and 4-5 are two windows; the presses in rows 1 and 5 are never seen by the model."""
    raw = np.array([[1, 0], [0, 1], [0, 0], [0, 0], [0, 1], [1, 1]])
    result = hold_actions(raw, 4)
    assert result.held_RK.tolist() == [[1, 0]] * 4 + [[0, 1]] * 2
    assert result.dropped_presses == 3


def test_window_must_be_positive() -> None:
    with pytest.raises(ValueError, match="window 0"):
        hold_actions(np.zeros((4, 11)), 0)


@given(rows=st.integers(1, 300), bins=st.integers(1, 60))
def test_bin_edges_cover_all_rows_and_match_their_formula(rows: int, bins: int) -> None:
    edges = action_bin_edges(rows, bins)
    assert len(edges) == bins
    assert edges[0][0] == 0
    assert edges[-1][1] == rows
    for i, (start, end) in enumerate(edges):
        assert start == int(np.floor(i * rows / bins))
        assert end == int(np.ceil((i + 1) * rows / bins))
        assert start < end
    seen = set().union(*(range(start, end) for start, end in edges))
    assert seen == set(range(rows))


def test_edges_of_the_real_lengths() -> None:
    assert action_bin_edges(100, 25)[:2] == ((0, 4), (4, 8))
    assert action_bin_edges(97, 25)[:2] == ((0, 4), (3, 8))
    assert action_bin_edges(101, 26)[-1] == (97, 101)


@pytest.mark.parametrize(("frames", "usable"), [(100, 97), (101, 101), (97, 97), (4, 1), (5, 5), (33, 33), (1, 1)])
def test_usable_frames(frames: int, usable: int) -> None:
    assert usable_frames(frames) == usable


def test_no_frames_is_an_error() -> None:
    with pytest.raises(ValueError, match="frames 0"):
        usable_frames(0)


@pytest.mark.parametrize(("raw", "clean"), json.loads((GOLDEN / "prompt_cleaning.json").read_text()))
def test_prompts_are_cleaned_as_in_training(raw: str, clean: str) -> None:
    assert clean_prompt(raw) == clean


@pytest.mark.parametrize("blank", ["", " \n\t", "&nbsp;", "&amp;nbsp; "])
def test_blank_prompt_becomes_the_stock_prompt(blank: str) -> None:
    assert is_blank(blank)
    assert clean_prompt(blank) == BLANK_PROMPT == "SF3 Game."


@given(st.text())
def test_cleaning_never_leaves_an_empty_or_padded_prompt(text: str) -> None:
    cleaned = clean_prompt(text)
    assert cleaned
    assert cleaned == cleaned.strip()
    assert not is_blank(text) or cleaned == BLANK_PROMPT


def test_no_torch_is_imported() -> None:
    code = "import sys, stateplay_rl.worlds.preparation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
