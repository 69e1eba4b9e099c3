"""The study's statistics by hand, and its tables on made-up results."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

STUDY = Path(__file__).resolve().parents[1] / "examples" / "benchmarks" / "study"
CONDITIONS = 12


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STUDY))


def curve(gains: dict[int, float], start: float = 50.0) -> list[dict[str, Any]]:
    """Held-out points after so many candidates; conditions differ at the start and gain alike."""
    spread = np.linspace(-5, 5, CONDITIONS)
    return [
        {"batches": c // 64, "candidates": c, "referee": start + g, "judge": start + g, "frozen_share": 0.5,
         "luma": 100.0, "distance": 0.1, "by_condition": (start + g + spread).tolist()}
        for c, g in gains.items()
    ]  # fmt: skip


def test_a_crossing_is_linear_between_evaluations() -> None:
    """From (64, 4) to (128, 12): gain 6 is a quarter of the way, 80 candidates."""
    from study_statistics import crossing

    candidates, gains = np.array([0, 64, 128]), np.array([0.0, 4.0, 12.0])
    assert crossing(candidates, gains, 6.0) == pytest.approx(80.0)
    assert crossing(candidates, gains, 0.0) == 0.0
    assert crossing(candidates, gains, 12.5) == math.inf


def test_intervals_hold_seeds_and_conditions() -> None:
    """Two seeds with gains 2 and 4, alike for all conditions: the mean is 3, resamples lie on 2, 3 and 4."""
    from study_statistics import difference, mean_gain

    gains = np.array([[2.0] * CONDITIONS, [4.0] * CONDITIONS])
    found = mean_gain(gains)
    assert (found.value, found.low, found.high) == (3.0, 2.0, 4.0)
    apart = difference(gains, gains - 1.0)
    assert (apart.value, apart.low, apart.high) == (1.0, 1.0, 1.0), "paired: what seeds share cancels"
    with pytest.raises(ValueError, match="not of the same seeds"):
        difference(gains, gains[:1])
    one = mean_gain(np.arange(CONDITIONS, dtype=float)[None])
    assert one.low < one.value == 5.5 < one.high


def test_efficiency_is_a_ratio_of_candidates_and_says_never() -> None:
    """Gain 7: after 56 candidates against 224; gain 20: only the first one gets there, so the ratio has no bound."""
    from study_statistics import efficiency, stacked

    fast = stacked([curve({0: 0.0, 64: 8.0, 256: 32.0})] * 2)
    slow = stacked([curve({0: 0.0, 64: 2.0, 256: 8.0})] * 2)
    found = efficiency(fast, slow, 7.0)
    assert found is not None
    assert (found.one, found.two) == (pytest.approx(56.0), pytest.approx(224.0))
    assert found.ratio.value == pytest.approx(4.0)
    assert (found.ratio.low, found.ratio.high) == (pytest.approx(4.0), pytest.approx(4.0))
    unbounded = efficiency(fast, slow, 20.0)
    assert unbounded is not None
    assert (unbounded.ratio.value, unbounded.two_never) == (math.inf, 1.0)
    assert efficiency(slow, fast, 20.0) is None


def test_curves_are_joined_at_common_points() -> None:
    from study_statistics import stacked

    curves = stacked([curve({0: 0.0, 64: 1.0, 128: 2.0}), curve({0: 0.0, 128: 4.0})])
    assert curves.candidates_P.tolist() == [0, 128]
    np.testing.assert_allclose(curves.gains(128).mean(axis=1), [2.0, 4.0])
    with pytest.raises(ValueError, match="no evaluation after 64"):
        curves.gains(64)


def final() -> dict[str, Any]:
    """What an arm ends with."""
    right = {name: [0.9] * 12 for name in ("hp", "meter", "body", "stance")}
    picture = {"luma": 101.0, "saturation": 30.0, "motion": 4.0, "sharpness": 13.0, "flicker": 0.7}
    return {
        "parts": {"hp": 80.0, "meter": 70.0, "position": 60.0, "readable_share": 1.0},
        "horizon": {name: values[:8] for name, values in right.items()},
        "long_horizon": right,
        "picture": picture,
        "picture_true": {**picture, "luma": 100.0},
        "diversity": 2.5,
        "score_deviation": 9.0,
    }


def write_result(folder: Path, purpose: str, method: str, seed: int, **values: Any) -> None:
    result = {
        "purpose": purpose, "method": method, "seed": seed, "judge": "referee", "curve": [], "alarms": [],
        "seconds": [], "final": final(), "candidates_per_batch": 64, **values,
    }  # fmt: skip
    last = result["judge"] if purpose == "judge" else method
    (folder / f"{purpose}-{last}-s{seed}.json").write_text(json.dumps(result))


def test_tables_quote_what_was_measured(tmp_path: Path) -> None:
    from study_results import main

    arms = tmp_path / "arms"
    arms.mkdir()
    write_result(arms, "main", "base", 0, curve=curve({0: 0.0}))
    for seed in (0, 1):
        write_result(arms, "main", "nft", seed, curve=curve({0: 0.0, 64: 8.0, 256: 30.0 + seed}))
        write_result(arms, "main", "flow_grpo", seed, curve=curve({0: 0.0, 64: 4.0, 256: 12.0, 512: 24.0}))
        write_result(arms, "main", "shuffled", seed, curve=curve({0: 0.0, 64: 0.0, 256: -2.0}))
        write_result(arms, "main", "sft_mixture", seed, curve=curve({0: 0.0, 64: 4.0, 256: 1.0}))
    for method, train in (("nft", 0.5), ("flow_grpo", 1.5)):
        parts = {"sample": 0.2, "decode": 0.3, "judge": 9.0, "train": train}
        write_result(arms, "time", method, 0, seconds=[{**parts, "train": 99.0}, parts, parts])
    hacked = curve({0: 0.0, 64: 3.0, 256: -9.0})
    for point, reward in zip(hacked, (40.0, 60.0, 80.0), strict=True):
        point["judge"] = reward
    alarm = {"batch": 3, "name": "luma", "severity": "alarm", "value": 30.0, "threshold": 25.0}
    write_result(arms, "judge", "nft", 0, judge="bright", curve=hacked, alarms=[alarm])
    main(["--study", str(tmp_path), "--out", str(tmp_path / "out")])
    text = (tmp_path / "out" / "tables.md").read_text()
    assert "Start: 50.0 points; compared after 256 candidates." in text
    assert "| nft | 2 | +30.5 [+30.0, +31.0] | +30.0, +31.0 | +32.5 [+32.0, +33.0] | +30.5 |" in text
    # Gain 5: NFT after 40 candidates, Flow-GRPO after 88; a batch of GPU work costs 1 s against 2 s.
    assert "| +5 | 40 | 88 | 2.2 [2.2, 2.2] | 4.4 [4.4, 4.4] | 0 % |" in text
    # Continued SFT's best is +4: NFT is there after 32 candidates, half a batch of one GPU second.
    assert "| sft_mixture (+4.0) | nft | 32 | 0.50 |" in text
    assert "| nft | sft_mixture | +29.5 [+29.0, +30.0] | +29.0, +30.0 |" in text
    assert "| bright | 40.0 -> 80.0 | 50.0 -> 53.0 (1) -> 41.0 | 4 | luma ! 4 |" in text
    with (tmp_path / "out" / "curves.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "nft" and row["purpose"] == "main"]
    assert [row["referee"] for row in rows] == ["50.0", "58.0", "80.0", "50.0", "58.0", "81.0"]
    for name in ("study-curves.png", "study-horizon.png", "study-judges.png"):
        assert (tmp_path / "out" / name).read_bytes()[:4] == b"\x89PNG"


def test_an_empty_folder_names_the_command(tmp_path: Path) -> None:
    from study_results import main

    with pytest.raises(SystemExit, match=r"run_study\.py"):
        main(["--study", str(tmp_path), "--out", str(tmp_path / "out")])
