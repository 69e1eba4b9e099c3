"""The lines of `verify signal`: each planted fault fails exactly its line and says what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stateplay_rl.nft.signal import GradientCosine, Spread
from stateplay_rl.stages.judge_noise import JudgeNoise
from stateplay_rl.stages.signal_lines import GO_CANDIDATES, Measured, signal_lines

SPREAD = Spread(groups=28, within_group=24.0, between_conditions=10.0, share_both_modes=0.8, share_tied=0.0)
COSINE = GradientCosine(mean=0.6, low=0.5, high=0.7, splits=32, units_per_half=14)
GOOD = Measured(SPREAD, 4, 28, COSINE)
QUIET = JudgeNoise(3.0, Path("probe"))

FAULTS = {
    "within-group deviation": (replace(GOOD, scores=replace(SPREAD, within_group=9.9)), JudgeNoise(0.0, Path("p"))),
    "both modes": (replace(GOOD, scores=replace(SPREAD, share_both_modes=0.49)), QUIET),
    "gradient cosine": (replace(GOOD, cosine=replace(COSINE, mean=0.19)), QUIET),
    "judge noise": (GOOD, JudgeNoise(26.0, Path("probe"))),
}


def failed(measured: Measured, noise: JudgeNoise | None) -> set[str]:
    return {line.name for line in signal_lines(measured, "judge", noise) if line.status == "failed"}


def test_a_good_signal_passes() -> None:
    lines = signal_lines(GOOD, "judge", QUIET)
    assert [(line.name, line.status, line.todo) for line in lines] == [(name, "passed", "") for name in FAULTS]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_fails_its_line_alone(name: str) -> None:
    measured, noise = FAULTS[name]
    also = {"judge noise"} if name == "within-group deviation" else set()  # what is too small is so without noise, too
    assert failed(measured, noise) == {name} | also
    assert all(line.todo for line in signal_lines(measured, "judge", noise) if line.status == "failed")


def test_a_judge_that_was_never_probed_is_said_to_be_unknown() -> None:
    line = signal_lines(GOOD, "judge", None)[-1]
    assert (line.status, "judge judge" in line.detail, "--probe" in line.todo) == ("skipped", True, True)


def test_the_noise_is_taken_out_of_the_deviation() -> None:
    """K = 4: 24^2 - 3/4 x 26^2 = 69, so 8.3 of 24 points are left."""
    line = signal_lines(GOOD, "judge", JudgeNoise(26.0, Path("probe")))[-1]
    assert "of 24.0 points within groups 8.3 are left" in line.detail


def test_a_small_sample_is_named() -> None:
    few = replace(GOOD, cosine=replace(COSINE, units_per_half=2))
    assert f"at {GO_CANDIDATES} candidates in all: here are fewer" in signal_lines(few, "judge", None)[2].detail
    assert GO_CANDIDATES == 96


def test_a_cosine_that_could_not_be_measured_fails_with_the_reason() -> None:
    line = signal_lines(replace(GOOD, cosine=None, why_not="1 of 28 groups"), "judge", None)[2]
    assert (line.status, "1 of 28 groups" in line.detail) == ("failed", True)
