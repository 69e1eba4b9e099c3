"""The scripts around the student run at tiny sizes and do what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stateplay_rl.reward_model.base_model import load_base
from stateplay_rl.reward_model.payload import TextPart, build_from_group
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore
from tests.e2e.command_line import environment
from tests.reward_model.arena_groups import conditions, write_group, write_inputs

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "examples" / "arena_student"


def script(*arguments: object) -> str:
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_recipe_shows_what_the_judge_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts and places of pictures are those of the judge's own builder; patches those of the picture reader."""
    monkeypatch.syspath_prepend(str(RECIPE))
    from student_recipe.model import GRID, patches_of
    from student_recipe.prompts import arena_protocol, make_tokenizer, request_parts

    from stateplay_rl.reward_model.chat import ChatFormat
    from stateplay_rl.reward_model.pictures import PictureReader

    chosen = conditions(3, 12)
    store = GroupStore(tmp_path)
    for condition in chosen:
        payload = build_from_group(write_group(store, condition), arena_protocol())
        shown = [part.text if isinstance(part, TextPart) else None for part in payload.parts]
        assert shown == [None if part is None else part.text for part in request_parts(condition)]
    tokenizer = make_tokenizer(chosen)
    chat = ChatFormat(tokenizer, tokenizer.convert_tokens_to_ids("<|image_pad|>"))
    tokens = GRID.tokens(2)
    assert len(chat.prompt(payload.parts, [tokens] * len(payload.images)).ids) < 700
    reader = PictureReader(16, 2, 2, {"shortest_edge": 1024, "longest_edge": 1 << 20})
    picture = payload.images[-1].jpeg
    assert reader.grid(picture) == GRID
    patches = reader.patches(torch.tensor(reader.pixels(picture)[None]))[0]
    pixels = (patches.reshape(GRID.rows * GRID.columns, 3, 2, 16, 16)[:, :, 0] + 1.0) * 127.5
    rows = pixels.reshape(2, 3, 2, 2, 3, 16, 16).permute(0, 2, 5, 1, 3, 6, 4).reshape(1, 64, 96, 3)
    torch.testing.assert_close(patches_of(rows)[0], patches, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_recipe_of_the_arena_student_runs(tmp_path: Path) -> None:
    script(RECIPE / "train_student.py", "--out", tmp_path, "--scale", 0.0005, "--device", "cpu")
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["bytes"] < 12_000_000
    base = load_base(tmp_path / "student", device=torch.device("cpu"), precision="float32", rule="auto")
    assert list(base.layer_types) == (["linear_attention"] * 3 + ["full_attention"]) * 2


@pytest.mark.slow
def test_the_benchmark_runs_on_small_sizes(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    script(ROOT / "examples" / "benchmarks" / "student_9b.py", "--tiny", "--device", "cpu", "--out", out, "--steps", 1)
    found = json.loads(out.read_text())
    assert found["tokens"]["images"] == 1 + 3 + 5 * 4
    assert found["gradients"]["cosine"] > 0.9999
    assert found["kernels_float32"]["chunked"]["gradient"] < 1e-4
    assert set(found["score_parts"]) == {"embedding", "prefill", "answer"}
    assert found["step_profile"]["by_kind"]["products"] > 0
    assert not [name for name, row in found.items() if isinstance(row, dict) and "error" in row]


def test_two_scores_are_compared(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, ["train", "test"])
    text = script(ROOT / "examples" / "benchmarks" / "compare_scores.py", inputs.scores, inputs.scores)
    assert "scored by both" in text
    assert (inputs.scores / layout.SCORES).is_file()
    row = next(line for line in text.splitlines() if "same whole points" in line)
    assert row.split("│")[2].strip() == "1"


def test_the_health_judge_looks_at_the_health_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores are the referee's health parts, clipped; where health never changes, the total."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "student"))
    from health_judge import HealthJudge

    from stateplay_rl.arena.judge import RefereeJudge

    store, other = GroupStore(tmp_path), 0
    for condition in conditions(4, 12):
        group = write_group(store, condition)
        ours, theirs = HealthJudge().score_group(group), RefereeJudge().score_group(group)
        parts: Any = theirs.details["candidates"]
        wanted = [c["score"] if c["hp"] is None else min(100.0, max(0.0, c["hp"])) for c in parts]
        assert list(ours.scores) == pytest.approx(wanted)
        other += ours.scores != theirs.scores
    assert other
    assert HealthJudge().protocol_sha256 != RefereeJudge().protocol_sha256
