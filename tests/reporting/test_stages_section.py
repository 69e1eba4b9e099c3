"""A run of two stages: its segments, its audits, and scores of two judges that are never compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.reporting.blocks import Section
from stateplay_rl.reporting.run_charts import reward_chart
from stateplay_rl.reporting.run_data import RunData
from stateplay_rl.reporting.run_files import read_run
from stateplay_rl.reporting.sources import Source, open_sources
from stateplay_rl.reporting.stages_section import stages_section
from stateplay_rl.reporting.verdict import run_headline
from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import LineLog
from tests.reporting.fixture_dirs import FixtureConfig, RunPlan, make_run, open_output

BATCHES_OF_A = 4


def change_lines(file: Path, change: Any) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        change(line)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def two_stages(tmp_path: Path) -> tuple[Source, RunData]:
    """Four batches judged by `paid`, then stage C, still open, judged by `student`; both evaluated twice."""
    run = tmp_path / "run"
    make_run(run, RunPlan(batches=6, evaluations=(0, 4, 5, 6), sealed=False, videos=False, groups_per_batch=0))
    first = run / layout.SEGMENTS_FOLDER / "000-a"
    with open_output(first, "segment", {}, FixtureConfig()) as output:
        LineLog(first / layout.VERDICTS).append({"group_id": "g", "judge_id": "paid"})
        output.seal(extra={"first_batch": 0, "batches": BATCHES_OF_A})
    second = run / layout.SEGMENTS_FOLDER / "001-c"
    LineLog(second / layout.VERDICTS).append({"group_id": "g", "judge_id": "student"})

    def metrics(line: dict[str, Any]) -> None:
        in_c = line["batch"] >= BATCHES_OF_A
        line["stage"] = "c" if in_c else "a"
        if line["batch"] == BATCHES_OF_A:
            line["audit"] = {"groups": 28, "unscored": 1, "student_failed": 0.25, "pairwise": 0.8}

    def heldout(line: dict[str, Any]) -> None:
        line["judge_id"] = "student" if line["batch"] > BATCHES_OF_A else "paid"
        if line["judge_id"] == "student":  # a milder judge: without any change of the videos scores are higher
            line["reward_mean"] += 30
            line["scores"] = {name: [value + 30 for value in values] for name, values in line["scores"].items()}

    change_lines(run / layout.METRICS, metrics)
    change_lines(run / layout.HELDOUT, heldout)
    (source,) = open_sources([run])
    return source, read_run(source)


def test_scores_of_two_judges_are_never_compared(two_stages: tuple[Source, RunData]) -> None:
    source, run = two_stages
    gain = run.gain()
    assert gain is not None
    assert (gain.before.batch, gain.after.batch) == (5, 6)
    assert gain.interval.mean == pytest.approx(26 / 6, abs=0.5)
    told = " ".join(run_headline(run, source.finished).sentences)
    assert "scores by student; those by paid lie on another scale" in told
    labels = [series.label for series in reward_chart(run).series]
    assert labels == ["held-out, live, by paid", "held-out, live, by student", "training, stage A", "training, stage C"]


def test_a_last_judge_with_one_evaluation_leaves_the_word_to_the_one_before(
    two_stages: tuple[Source, RunData],
) -> None:
    _, run = two_stages
    shorter = RunData(run.config, run.metrics, run.evaluations[:3], run.timings, run.alarms, run.clusters)
    gain = shorter.gain()
    assert gain is not None
    assert (gain.before.judge_id, gain.after.judge_id) == ("paid", "paid")


def table_rows(section: Section, key: str) -> tuple[Any, ...]:
    return next(b.rows for b in section.blocks if b.kind == "table" and b.key == key)


def test_segments_and_audits_are_listed(two_stages: tuple[Source, RunData]) -> None:
    section = stages_section(*two_stages)
    assert section is not None
    rows = table_rows(section, "segments")
    assert [row[:5] for row in rows] == [
        ("000-a", "stage A", "paid", "sealed", 4),
        ("001-c", "stage C", "student", "open", 2),
    ]
    assert table_rows(section, "audits") == ((4.0, 28.0, 1.0, 25.0, 0.8),)


def test_a_run_of_one_segment_has_no_such_section(tmp_path: Path) -> None:
    make_run(tmp_path / "run", RunPlan(batches=2, evaluations=(), videos=False))
    (source,) = open_sources([tmp_path / "run"])
    assert stages_section(source, read_run(source)) is None
