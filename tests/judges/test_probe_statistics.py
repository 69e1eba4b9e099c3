"""The probe's statistics on judges whose noise and bias are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stateplay_rl.judges.probe_plan import ProbePlan
from stateplay_rl.judges.probe_statistics import Showing, analyse

BIAS = (6.0, 0.0, 0.0, -6.0)
PLANTED = {"duplicate": None, "reference": 90.0, "frozen": 5.0, "backwards": 20.0, "other_clip": 10.0}


def showings(
    seed: int, groups: int = 8, within: float = 0.0, between: float = 0.0, signal: float = 20.0, bias=(0.0,) * 4
) -> list[Showing]:
    """A judge that keeps to the model exactly."""
    rng = np.random.default_rng(seed)
    found = []
    for g in range(groups):
        true = 50 + signal * rng.standard_normal(4)
        for variant in ProbePlan(3, True, True).variants(4, g, has_reference=True):
            offset = between * rng.standard_normal()
            scores = []
            for place, source in enumerate(variant.sources):
                value = true[source] if isinstance(source, int) else PLANTED[source]
                value = true[0] if value is None else value
                scores.append(float(value + bias[place] + offset + within * rng.standard_normal()))
            found.append(Showing(f"g{g}", variant, tuple(scores)))
    return found


def covered(estimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


def test_known_noise_and_bias_lie_in_their_intervals() -> None:
    """Over 100 probes each interval holds the truth in at least 88 (95 expected, deviation 2.2)."""
    hits = {"within": 0, "between": 0, "position": 0}
    for seed in range(100):
        result = analyse(showings(seed, within=5.0, between=3.0, bias=BIAS))
        hits["within"] += covered(result.within, 5.0)
        hits["between"] += covered(result.between, 3.0)
        hits["position"] += all(covered(p, b) for p, b in zip(result.position, BIAS, strict=True))
    assert min(hits.values()) >= 88, hits


def test_the_one_number_is_true_differences_over_noise() -> None:
    found = [analyse(showings(s, groups=40, within=5.0, between=8.0, signal=15.0, bias=BIAS)) for s in range(5)]
    assert np.mean([r.signal for r in found]) == pytest.approx(15.0, rel=0.1)
    assert np.mean([r.signal_to_noise for r in found]) == pytest.approx(3.0, rel=0.1)


def test_a_judge_of_pure_noise_has_no_signal() -> None:
    ratios = [analyse(showings(s, within=10.0, signal=0.0)).signal_to_noise for s in range(20)]
    assert max(ratios) < 0.6


def test_a_judge_without_noise() -> None:
    result = analyse(showings(0))
    assert result.noise_free
    assert result.signal_to_noise is None
    assert result.within is not None
    assert result.within.value == 0.0
    assert all(p.value == pytest.approx(0.0, abs=1e-9) for p in result.position)
    assert result.duplicate_gap == pytest.approx(0.0, abs=1e-9)


def test_planted_candidates() -> None:
    result = analyse(showings(1, signal=8.0))
    assert result.planted["reference"].rank == 1.0
    assert result.planted["reference"].highest == 1.0
    assert result.planted["frozen"].rank == 4.0
    assert result.planted["frozen"].lowest == 1.0
    assert result.planted["backwards"].score == pytest.approx(20.0)


def test_duplicates_differ_by_noise_and_place() -> None:
    results = [analyse(showings(seed, groups=30, within=5.0)) for seed in range(10)]
    assert np.mean([r.duplicate_gap for r in results]) == pytest.approx(math.sqrt(2) * 5, rel=0.15)
    assert results[0].duplicate_expected == pytest.approx(math.sqrt(2) * results[0].within.value)


def test_the_text_about_the_opponent() -> None:
    changed = [
        Showing(s.group_id, s.variant, tuple(100 - v for v in s.scores)) if s.variant.kind == "other_prompt" else s
        for s in showings(2)
    ]
    assert analyse(changed).prompt_reordered == 1.0
    assert analyse(showings(2)).prompt_reordered == 0.0
    assert analyse(showings(2)).prompt_shift == pytest.approx(0.0, abs=1e-9)


def test_showings_without_scores_are_counted_and_left_out() -> None:
    found = showings(3, within=5.0)
    broken = [Showing(s.group_id, s.variant, None) if n % 7 == 0 else s for n, s in enumerate(found)]
    result = analyse(broken)
    assert result.missing == sum(n % 7 == 0 for n in range(len(found)))
    assert result.within is not None
    nothing = analyse([Showing(s.group_id, s.variant, None) for s in found])
    assert (nothing.groups, nothing.within, nothing.signal_to_noise, nothing.position) == (0, None, None, ())
