"""Errors are measured, never hidden: NaN, shapes and empty files fail."""

from __future__ import annotations

import pytest
import torch

from stateplay_rl.checks.comparison import Comparison, GoldenFolder


def test_relative_error_by_hand():
    """Largest difference 0.5 over the largest wanted value 4: 0.125."""
    comparison = Comparison(0.2)
    comparison.relative("a", torch.tensor([1.0, 4.5]), torch.tensor([1.0, 4.0]))
    line = comparison.line("f")
    assert (line.status, line.largest_error, line.compared) == ("passed", 0.125, 1)
    assert "a" in line.detail


def test_elementwise_error_by_hand():
    """|0.2 - 0.1| / 0.1 = 1 counts although the value is small; where 0 is wanted the error is absolute."""
    comparison = Comparison(0.5)
    comparison.elementwise("a", torch.tensor([0.2, 100.0, 0.25]), torch.tensor([0.1, 100.0, 0.0]))
    assert comparison.line("f").status == "failed"
    assert comparison.line("f").largest_error == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (torch.tensor([float("nan")]), torch.tensor([1.0])),
        (torch.tensor([1.0]), torch.tensor([float("nan")])),
        (torch.tensor([float("inf")]), torch.tensor([1.0])),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(0), torch.zeros(0)),
    ],
)
def test_what_cannot_be_compared_fails(got, wanted):
    comparison = Comparison(1e9)
    comparison.relative("a", got, wanted)
    assert comparison.line("f").status == "failed"


def test_nothing_compared_fails():
    assert Comparison(1.0).line("f").status == "failed"


def test_exact_differences_fail_and_are_counted():
    comparison = Comparison(0.0)
    comparison.exact("a", 1, 1)
    comparison.exact("b", 1, 2)
    comparison.exact("c", 1, 3)
    line = comparison.line("f")
    assert line.status == "failed"
    assert line.detail == "b: computed 1, stored 2 and 1 more"


def test_clips_are_optional(tmp_path):
    assert GoldenFolder(tmp_path, None).clip_names == frozenset()
    assert "STATEPLAY_CLIPS" in GoldenFolder(tmp_path, None).why_no_clips()
    (tmp_path / "one").mkdir()
    assert GoldenFolder(tmp_path, tmp_path).clip_names == {"one"}
