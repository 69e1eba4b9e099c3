"""The checkout's own evaluators: called by their own parameter names, and named where they are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stateplay_rl.errors import InputError
from stateplay_rl.evaluation.checkout_metrics import ClipInputs, StateplayEvaluator

INPUTS = ClipInputs(Path("v.mp4"), np.zeros((3, 4, 4, 3), np.uint8), {"p1_hp": np.array([5])}, np.zeros((3, 11)))


def checkout(root: Path, metrics: str | None, **others: str) -> Path:
    folder = root / "evaluation" / "hud"
    folder.mkdir(parents=True)
    if metrics is not None:
        (folder / "metrics.py").write_text(metrics, encoding="utf-8")
    for name, text in others.items():
        (root / "evaluation" / f"{name}.py").write_text(text, encoding="utf-8")
    return root


def test_what_is_there_is_called_and_the_rest_is_named(tmp_path: Path) -> None:
    root = checkout(
        tmp_path,
        "import helper\n"
        "def evaluate_clip(video_path, gt_states, fps=20, *, verbose=False):\n"
        "    return {'rvsa': {'low': 0.25, 'high': helper.HALF}, 'coverage': 1, 'name': str(video_path),"
        " 'bad': float('nan'), 'hp': len(gt_states)}\n",
        actions="def move_accuracy(frames, actions):\n    return 0.75\n",
    )
    (root / "helper.py").write_text("HALF = 0.5\n", encoding="utf-8")
    found = StateplayEvaluator.open(root).evaluate(INPUTS)
    assert found.values == {"rvsa.low": 0.25, "rvsa.high": 0.5, "coverage": 1.0, "hp": 1.0, "Move-Acc": 0.75}
    assert set(found.missing) == {"Att-Acc"}
    assert len(found.source_sha256) == 64


def test_an_empty_checkout_is_reported_as_missing(tmp_path: Path) -> None:
    found = StateplayEvaluator.open(checkout(tmp_path, None)).evaluate(INPUTS)
    assert found.values == {}
    assert set(found.missing) == {"evaluate_clip", "Move-Acc", "Att-Acc"}


def test_an_unknown_parameter_is_not_guessed(tmp_path: Path) -> None:
    root = checkout(tmp_path, "def evaluate_clip(video_path, secret_table):\n    raise RuntimeError\n")
    found = StateplayEvaluator.open(root).evaluate(INPUTS)
    assert "secret_table" in found.missing["evaluate_clip"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module_here\n", "cannot be imported"),
        ("def evaluate_clip(:\n", "cannot be imported"),
    ],
)
def test_what_cannot_be_imported_is_refused_before_a_run(tmp_path: Path, text: str, message: str) -> None:
    root = checkout(tmp_path, text)
    with pytest.raises(InputError, match=message):
        StateplayEvaluator.open(root)


def test_an_evaluator_that_fails_on_a_video_leaves_the_others_their_numbers(tmp_path: Path) -> None:
    root = checkout(
        tmp_path,
        "def evaluate_clip(frames):\n    return frames[99]\n",
        actions="def move_accuracy(frames):\n    return 0.75\n",
    )
    found = StateplayEvaluator.open(root).evaluate(INPUTS)
    assert found.values == {"Move-Acc": 0.75}
    assert found.missing["evaluate_clip"].startswith("failed: IndexError")


def test_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no StatePlay checkout"):
        StateplayEvaluator.open(tmp_path / "nowhere")
    root = checkout(tmp_path, "evaluate_clip = 3\n")
    assert "no function" in StateplayEvaluator.open(root).missing["evaluate_clip"]
