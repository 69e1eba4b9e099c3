"""The command line: options reach the config, exit codes, and what is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stateplay_rl.cli.main import main
from stateplay_rl.conditions import workers
from stateplay_rl.conditions.cache import RowCache
from stateplay_rl.errors import EXIT_CHECK, EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OK, EXIT_OUTSIDE, EXIT_USAGE
from stateplay_rl.stores.conditions import ConditionStore
from tests.conditions.clip_factory import full_disk, make_clip_folder, make_rows, write_csv


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    rows = make_rows(tmp_path / "data", 10)
    rows.append({**rows[0], "video": "../../etc/passwd"})
    return write_csv(tmp_path / "data" / "metadata.csv", rows)


def sprl(*arguments: object) -> int:
    return main(["build-conditions", *map(str, arguments)])


def test_a_build_and_what_it_prints(csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = sprl("--csv", csv, "--out", tmp_path / "out", "--preset", "arena", "--heldout", 4, "--workers", 1, "-q")
    assert code == EXIT_OK
    printed = capsys.readouterr().out
    for text in ("10 of 11 rows", "outside_data_root: 1", "video_cut: 10", "6 pass, 4 held out", "A 6, C 0"):
        assert text in printed
    store = ConditionStore.open(tmp_path / "out")
    assert store.manifest.config["clip"]["frame_width"] == 96
    assert store.manifest.config["clip"]["action_window"] == 4
    assert store.manifest.config["split"]["heldout"] == 4


def test_options_reach_the_selection(csv: Path, tmp_path: Path) -> None:
    arguments = [
        "--csv",
        csv,
        "--preset",
        "arena",
        "--classes",
        "normal,macro_fail",
        "--classes",
        "RESULT_WIN",
    ]
    assert sprl(*arguments, "--sample-per-class", 1, "--seed", 3, "--out", tmp_path / "out") == EXIT_OK
    store = ConditionStore.open(tmp_path / "out")
    assert sorted(record.mechanics_class for record in store.records) == [
        "macro_fail",
        "normal",
        "result_win",
    ]
    assert store.manifest.seeds == {"split": 3}
    assert sprl("--csv", csv, "--preset", "arena", "--limit", 5, "--out", tmp_path / "five") == EXIT_OK
    assert json.loads((tmp_path / "five" / "summary.json").read_text())["rows_examined"] == 5


def test_settings_win_over_the_preset(csv: Path, tmp_path: Path) -> None:
    settings = ["--preset", "arena", "--set", "clip.frame_width=128", "--set", "split.stage_a_conditions=3"]
    assert sprl("--csv", csv, *settings, "--out", tmp_path / "out") == EXIT_OK
    store = ConditionStore.open(tmp_path / "out")
    assert store.first_frame(store.records[0].condition_id).shape == (64, 128, 3)
    # The directory's own config file gives the same settings again.
    file = tmp_path / "out" / "config.yaml"
    assert sprl("--csv", csv, "--config", file, "--out", tmp_path / "out", "--resume") == EXIT_OK
    assert sprl("--csv", csv, "--config", file, "--out", tmp_path / "again") == EXIT_OK
    assert ConditionStore.open(tmp_path / "again").manifest.config == store.manifest.config


def test_wrong_usage(csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", tmp_path / "out"]
    assert sprl("--csv", csv) == EXIT_USAGE
    assert sprl(*out) == EXIT_USAGE
    assert sprl("--csv", csv, "--clips", tmp_path, *out) == EXIT_USAGE
    assert sprl("--csv", csv, "--preset", "doom", *out) == EXIT_USAGE
    assert sprl("--csv", csv, "--workers", 0, *out) == EXIT_USAGE
    assert sprl("--csv", csv, "--limit", 0, *out) == EXIT_USAGE
    assert sprl("--csv", csv, "--classes", "perfect", *out) == EXIT_USAGE
    assert sprl("--csv", csv, "--set", "clip.fpss=3", *out) == EXIT_USAGE
    assert sprl("--csv", csv, "--out", csv.parent / "clip000", "--overwrite") == EXIT_USAGE
    errors = capsys.readouterr().err
    assert "clip.fps" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "out").exists()


def test_bad_input(csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", tmp_path / "out", "--preset", "arena"]
    assert sprl("--csv", tmp_path / "none.csv", *out) == EXIT_INPUT
    assert sprl("--csv", csv.parent, *out) == EXIT_INPUT
    assert sprl("--csv", csv, "--data-root", tmp_path / "none", *out) == EXIT_INPUT
    assert sprl("--csv", csv, "--episodes", tmp_path / "none.csv", *out) == EXIT_INPUT
    assert sprl("--clips", tmp_path / "none", *out) == EXIT_INPUT
    assert not (tmp_path / "out").exists()
    (tmp_path / "other").mkdir()
    assert sprl("--csv", csv, "--data-root", tmp_path / "other", *out) == EXIT_INPUT
    errors = capsys.readouterr().err
    assert "none of 11 rows is eligible" in errors
    assert "Traceback" not in errors


def test_failed_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(3):
        make_clip_folder(tmp_path / "clips", f"{seed}", 0, prompt=f"{seed}")
        (tmp_path / "clips" / f"{seed}" / "prompt.txt").unlink()
    code = sprl(
        *("--clips", tmp_path / "clips", "--out", tmp_path / "out", "--preset", "arena"),
        *("--set", "clusters.largest_always_allowed=2"),
    )
    assert code == EXIT_CHECK
    assert "--episodes" in capsys.readouterr().err


def test_full_disk_and_interrupt_leave_something_to_resume(
    csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--csv", csv, "--out", tmp_path / "out", "--preset", "arena", "--workers", 1]
    with monkeypatch.context() as patch:
        patch.setattr(workers, "_examine_here", full_disk)
        assert sprl(*arguments) == EXIT_OUTSIDE
    assert "5 bytes needed" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(RowCache, "append", interrupted)
        assert sprl(*arguments, "--resume") == EXIT_INTERRUPTED
    assert sprl(*arguments, "--resume") == EXIT_OK
    assert len(ConditionStore.open(tmp_path / "out")) == 10


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_module_is_light() -> None:
    """Help must be instant: nothing heavy before the command line has been parsed."""
    code = (
        "import sys, stateplay_rl.cli.build_conditions\n"
        "heavy = {'torch', 'numpy', 'av', 'pyarrow', 'PIL', 'ftfy'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_every_option_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert sprl("--help") == EXIT_OK
    shown = capsys.readouterr().out
    for name in (
        "--csv",
        "--data-root",
        "--clips",
        "--episodes",
        "--preset",
        "--heldout",
        "--limit",
        "--classes",
    ):
        assert name in shown
