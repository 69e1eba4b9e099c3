"""The blind set: balanced, paired, shuffled, silent about the policy; and people's scores read back."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.cli.main import main
from stateplay_rl.config.report import ReportConfig
from stateplay_rl.errors import CorruptionError, InputError, UsageError
from stateplay_rl.reporting.build import build_report
from stateplay_rl.reporting.label_files import read_labels
from stateplay_rl.reporting.label_section import correlation, ordered_alike, pairs, ranks, side_difference
from stateplay_rl.reporting.label_set import LabelItem, LabelKey, choose_label_set, read_key
from stateplay_rl.reporting.run_files import read_run
from stateplay_rl.reporting.sources import open_sources
from tests.reporting.conftest import Dirs

COUNT = 6


@pytest.fixture(scope="module")
def report(dirs: Dirs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("blind") / "report"
    arguments = ["report", str(dirs.run), "--label-set", str(COUNT), "--out", str(out), "--set", "png=false", "-q"]
    assert main(arguments) == 0
    return out


def saved(report: Path, file: Path, scores: dict[str, Any], **changes: Any) -> Path:
    key = json.loads((report / "labels" / "key.json").read_text())
    labels = {name: {"score": score} for name, score in scores.items()}
    value = {"version": 1, "set_sha256": key["set_sha256"], "labeller": "Ada", "labels": labels, **changes}
    file.write_text(json.dumps(value))
    return file


def item(side: Any, condition: str, judge: float | None = None, candidate: int = 0) -> LabelItem:
    return LabelItem(side, "ab" * 32, condition, "normal", f"g-{condition}-{side}", candidate, "cd" * 32, judge)


def test_half_is_of_each_policy_on_the_same_conditions(report: Path) -> None:
    key = read_key(report / "labels" / "key.json")
    assert Counter(one.side for one in key.items.values()) == {"base": COUNT // 2, "tested": COUNT // 2}
    sides = [{(i.condition_id, i.candidate) for i in key.items.values() if i.side == s} for s in ("base", "tested")]
    assert sides[0] == sides[1]


def test_nothing_that_a_person_opens_says_which_policy(report: Path) -> None:
    key = read_key(report / "labels" / "key.json")
    page = (report / "labels" / "label.html").read_text()
    for one in key.items.values():
        for secret in (one.group_id, one.policy_sha256, one.condition_id, one.mechanics_class):
            assert secret not in page
    assert '"side"' not in page
    names = {path.name for path in (report / "labels" / "media").iterdir()}
    assert names <= {f"{name}{end}.mp4" for name in key.items for end in ("", "-real")}


def test_each_name_plays_the_video_of_the_key(report: Path) -> None:
    key = read_key(report / "labels" / "key.json")
    for name, one in key.items.items():
        data = (report / "labels" / "media" / f"{name}.mp4").read_bytes()
        assert hashlib.sha256(data).hexdigest() == one.video_sha256


def test_the_order_is_shuffled_by_the_seed(dirs: Dirs) -> None:
    (source,) = open_sources([dirs.run])
    run = read_run(source)
    orders = [
        [(i.side, i.condition_id) for i in choose_label_set(source, run, COUNT, seed).key.items.values()]
        for seed in (0, 0, 1, 2, 3)
    ]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) > 1
    assert sorted(orders[0]) == sorted(orders[2])


def test_a_run_of_two_judges_shows_its_ends_and_one_judges_scores(dirs: Dirs) -> None:
    (source,) = open_sources([dirs.run])
    run = read_run(source)
    first, last = run.evaluations
    changed = replace(run, evaluations=(replace(first, judge_id="paid"), replace(last, judge_id="student")))
    key = choose_label_set(source, changed, COUNT, 0).key
    assert {(one.side, one.judge_score is None) for one in key.items.values()} == {("base", True), ("tested", False)}
    assert {one.judge_score is None for one in choose_label_set(source, run, COUNT, 0).key.items.values()} == {False}


def test_more_videos_than_there_are_is_refused(dirs: Dirs) -> None:
    (source,) = open_sources([dirs.run])
    with pytest.raises(UsageError, match="hold"):
        choose_label_set(source, read_run(source), 10_000, 0)
    assert main(["report", str(dirs.groups), "--label-set", "4", "--out", "never"]) == 2


def test_scores_are_read_back_into_the_runs_page(dirs: Dirs, report: Path, tmp_path: Path) -> None:
    key = read_key(report / "labels" / "key.json")
    scores = {name: 90 if one.side == "tested" else 40 for name, one in key.items.items()}
    file = saved(report, tmp_path / "ada.json", scores)
    config = ReportConfig(labels=(file,), label_key=report / "labels" / "key.json")
    page = build_report([dirs.run], tmp_path / "out", config).pages[0]
    (section,) = [s for s in page.sections if s.key == "labels"]
    values = {stat.label: stat.value for block in section.blocks if block.kind == "stats" for stat in block.stats}
    assert values["videos scored"] == f"{COUNT} of {COUNT}"
    assert values["base, people"] == "40.0"
    assert values["tested policy, people"] == "90.0"
    assert values["difference, people"] == "+50.0"


def test_labels_of_another_run_are_refused(dirs: Dirs, report: Path, tmp_path: Path) -> None:
    file = saved(report, tmp_path / "ada.json", {"001": 50})
    config = ReportConfig(labels=(file,), label_key=report / "labels" / "key.json")
    with pytest.raises(UsageError, match="none of the given runs"):
        build_report([dirs.groups], tmp_path / "out", config)


@pytest.mark.parametrize(
    ("scores", "changes", "told"),
    [
        ({"001": 101}, {}, r"labels\.001\.score is 101"),
        ({"001": "80"}, {}, r"labels\.001\.score is '80'"),
        ({"001": True}, {}, r"labels\.001\.score is True"),
        ({"999": 50}, {}, "no such video"),
        ({}, {"set_sha256": "0" * 64}, "another set"),
        ({}, {"version": 2}, "version 2"),
        ({}, {"labels": [1]}, "field 'labels'"),
        ({}, {"labels": {"001": 5}}, r"labels\.001 holds no 'score'"),
    ],
)
def test_a_wrong_file_is_refused_by_file_and_field(
    report: Path, tmp_path: Path, scores: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    key = read_key(report / "labels" / "key.json")
    with pytest.raises(InputError, match=told):
        read_labels(saved(report, tmp_path / "wrong.json", scores, **changes), key)


def test_labels_and_keys_that_are_not_there_are_told_apart(report: Path, dirs: Dirs, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file of labels"):
        build_report([dirs.run], tmp_path / "out", ReportConfig(labels=(tmp_path / "gone.json",)))
    file = saved(report, tmp_path / "ada.json", {"001": 50})
    with pytest.raises(InputError, match="the key that says whose videos were scored is not there") as caught:
        build_report([dirs.run], tmp_path / "out", ReportConfig(labels=(file,)))
    assert "--label-key" in caught.value.hint


def test_cannot_tell_is_not_a_score(report: Path, tmp_path: Path) -> None:
    key = read_key(report / "labels" / "key.json")
    labels = read_labels(saved(report, tmp_path / "ada.json", {"001": None, "002": 0}), key)
    assert labels.scores == {"002": 0.0}
    assert labels.unsure == ("001",)


def test_a_changed_key_is_refused(report: Path, tmp_path: Path) -> None:
    value = json.loads((report / "labels" / "key.json").read_text())
    value["items"]["001"]["video_sha256"] = "0" * 64
    (tmp_path / "key.json").write_text(json.dumps(value))
    with pytest.raises(CorruptionError, match="set_sha256"):
        read_key(tmp_path / "key.json")


def test_agreement_by_hand() -> None:
    """Two conditions: people see a rise in both, the judge in the first only; the third has no partner."""
    items = {
        "001": item("base", "c1", 10.0),
        "002": item("tested", "c1", 30.0),
        "003": item("tested", "c2", 50.0),
        "004": item("base", "c2", 60.0),
        "005": item("tested", "c3", 0.0),
    }
    key = LabelKey("run", 0, items)
    people = {"001": 20.0, "002": 50.0, "003": 80.0, "004": 70.0, "005": 5.0}
    judge = {name: one.judge_score for name, one in items.items() if one.judge_score is not None}
    assert sorted(pairs(key, people)) == [("001", "002"), ("004", "003")]
    assert ordered_alike(key, people, judge) == (0.5, 2)
    gain = side_difference(key, people, {})
    assert gain is not None
    assert gain.mean == pytest.approx(20.0)
    assert ordered_alike(key, {}, judge) == (None, 0)


def test_a_tie_is_an_order_of_its_own() -> None:
    key = LabelKey("run", 0, {"001": item("base", "c1"), "002": item("tested", "c1")})
    tied, risen = {"001": 50.0, "002": 50.2}, {"001": 40.0, "002": 60.0}
    assert ordered_alike(key, tied, risen) == (0.0, 1)
    assert ordered_alike(key, tied, tied) == (1.0, 1)


def test_two_samples_of_a_condition_are_paired_by_their_noise() -> None:
    first, second = item("base", "c1"), item("tested", "c1")
    items = {"001": first, "002": second, "003": replace(first, candidate=1), "004": replace(second, candidate=1)}
    scores = dict.fromkeys(items, 50.0)
    assert sorted(pairs(LabelKey("run", 0, items), scores)) == [("001", "002"), ("003", "004")]


def test_correlation_and_ranks() -> None:
    assert ranks([30.0, 10.0, 30.0, 20.0]) == [3.5, 1.0, 3.5, 2.0]
    assert correlation([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(1.0)
    assert correlation([1.0, 1.0], [1.0, 2.0]) is None
