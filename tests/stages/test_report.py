"""`sprl report` as a stage: what it writes, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stateplay_rl.config.report import ReportConfig
from stateplay_rl.errors import CorruptionError, OutputError, UnsealedError
from stateplay_rl.stages.report import ReportOptions, run
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import read_manifest
from tests.reporting.fixture_dirs import RunPlan, make_groups, make_run, make_scores

PLAN = RunPlan(batches=2, heldout=3, evaluations=(0, 2), alarms=1)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stage") / "run"
    make_run(path, PLAN)
    return path


def test_writes_a_sealed_directory_with_page_figures_and_tables(run_dir: Path, tmp_path: Path) -> None:
    summary = run(ReportConfig(), [run_dir], ReportOptions(tmp_path / "report"))
    manifest = read_manifest(tmp_path / "report", schema="report", verify_files=True)
    assert summary.html.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert {"report.html", "run-reward.png", "run-time.png", "tables/run-batches.csv"} <= set(manifest.files)
    assert manifest.inputs["source_0"].sha256 == read_manifest(run_dir).sha256
    assert summary.verdicts == (("run", "Held-out reward rose; no control"),)
    assert summary.figures == sum(name.endswith(".png") for name in manifest.files)
    assert summary.tables == sum(name.endswith(".csv") for name in manifest.files)


def test_equal_inputs_give_equal_files(run_dir: Path, tmp_path: Path) -> None:
    for _ in range(2):
        run(ReportConfig(), [run_dir], ReportOptions(tmp_path / "report", overwrite=True))
        files = read_manifest(tmp_path / "report").files
        shutil.move(tmp_path / "report", tmp_path / f"kept-{len(list(tmp_path.iterdir()))}")
    first, second = sorted(tmp_path.iterdir())
    assert read_manifest(first).files == read_manifest(second).files == files


def test_without_png(run_dir: Path, tmp_path: Path) -> None:
    summary = run(ReportConfig(png=False), [run_dir], ReportOptions(tmp_path / "report"))
    assert summary.figures == 0
    assert not list((tmp_path / "report").glob("*.png"))


def test_a_sealed_report_is_kept_unless_overwritten(run_dir: Path, tmp_path: Path) -> None:
    run(ReportConfig(png=False), [run_dir], ReportOptions(tmp_path / "report"))
    with pytest.raises(OutputError):
        run(ReportConfig(png=False), [run_dir], ReportOptions(tmp_path / "report"))
    run(ReportConfig(title="Again", png=False), [run_dir], ReportOptions(tmp_path / "report", overwrite=True))
    assert "<h1>Again</h1>" in (tmp_path / "report" / layout.REPORT).read_text(encoding="utf-8")


def test_the_report_is_never_written_over_its_input(run_dir: Path) -> None:
    before = read_manifest(run_dir).sha256
    for out in (run_dir, run_dir / "report"):
        with pytest.raises(OutputError):
            run(ReportConfig(png=False), [run_dir], ReportOptions(out, overwrite=True))
    assert read_manifest(run_dir, verify_files=True).sha256 == before


def test_a_bad_input_leaves_the_existing_report_alone(run_dir: Path, tmp_path: Path) -> None:
    run(ReportConfig(png=False), [run_dir], ReportOptions(tmp_path / "report"))
    broken = tmp_path / "scores"
    names = make_groups(tmp_path / "groups", 2)
    make_scores(broken, tmp_path / "groups", names)
    (broken / layout.SCORES).write_bytes(b"damaged")
    with pytest.raises(CorruptionError, match=r"scores\.parquet"):
        run(ReportConfig(png=False), [broken], ReportOptions(tmp_path / "report", overwrite=True))
    read_manifest(tmp_path / "report", verify_files=True)


def test_an_unfinished_run_is_reported_and_its_input_recorded_as_open(tmp_path: Path) -> None:
    make_run(tmp_path / "run", RunPlan(batches=1, evaluations=(0,), heldout=2, sealed=False))
    run(ReportConfig(png=False), [tmp_path / "run"], ReportOptions(tmp_path / "report"))
    assert read_manifest(tmp_path / "report").inputs["source_0"].sha256 is None


def test_an_unsealed_directory_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(UnsealedError):
        run(ReportConfig(png=False), [tmp_path / "plain"], ReportOptions(tmp_path / "report"))
    assert not (tmp_path / "report").exists()
