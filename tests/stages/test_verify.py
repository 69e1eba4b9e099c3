"""`sprl verify`: the record, the exit codes, and that nothing is written when nothing could be verified."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stateplay_rl.checks import install
from stateplay_rl.checks.lines import require
from stateplay_rl.cli import verify as cli
from stateplay_rl.config.verify import DirectoryConfig, GoldenConfig, InstallConfig
from stateplay_rl.errors import EXIT_CHECK, EXIT_INPUT, EXIT_USAGE, InputError, OutputError
from stateplay_rl.stages.verify import run
from stateplay_rl.stores import layout
from stateplay_rl.stores.sealed import read_manifest
from tests.checks.directories import write_chain

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_RUN_ROOT", raising=False)
    monkeypatch.delenv("STATEPLAY_CLIPS", raising=False)


@pytest.fixture
def golden(tmp_path):
    folder = tmp_path / "golden"
    folder.mkdir()
    shutil.copy(GOLDEN / "prompt_cleaning.json", folder)
    shutil.copy(GOLDEN / "old_policy_decay.json", folder)
    return folder


def command(*arguments):
    """Exit code and output; the boundary in `cli.main` turns an SprlError into its exit code."""
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments])
    code = getattr(result.exception, "exit_code", result.exit_code)
    return code, result.output, result.exception


def test_the_record_says_what_was_checked(golden, tmp_path):
    summary = run(GoldenConfig(folder=golden), tmp_path / "record")
    record = json.loads((tmp_path / "record" / layout.VERIFY).read_text())
    assert summary.passed
    assert (record["kind"], record["passed"], record["target"]) == ("golden", True, str(golden))
    assert [line["file"] for line in record["lines"]] == ["old_policy_decay.json", "prompt_cleaning.json"]
    manifest = read_manifest(tmp_path / "record", schema="verify", verify_files=True)
    assert manifest.extra == {"kind": "golden", "passed": True}
    assert manifest.config["folder"] == str(golden)


def test_golden_prints_a_line_a_file_and_names_its_record(golden, tmp_path):
    code, output, _ = command("golden", golden)
    assert code == 0
    lines = output.splitlines()
    assert re.match(r"passed +old_policy_decay.json +error 0.0e\+00 \(must be exact\)", lines[0])
    (record,) = tmp_path.glob("verify-*")
    assert lines[-1].endswith(record.name)


def test_a_mismatch_exits_4_with_a_record(golden, tmp_path):
    value = json.loads((golden / "old_policy_decay.json").read_text())
    value["decay_type_1"]["8"] = 0.5
    (golden / "old_policy_decay.json").write_text(json.dumps(value))
    code, output, error = command("golden", golden, "--out", tmp_path / "record")
    assert code == EXIT_CHECK
    assert "1 of 2 checks failed: old_policy_decay.json" in str(error)
    assert "type 1, step 8" in output
    assert json.loads((tmp_path / "record" / layout.VERIFY).read_text())["passed"] is False


def test_only_skipped_files_are_no_pass(golden):
    (golden / "old_policy_decay.json").unlink()
    (golden / "prompt_cleaning.json").unlink()
    shutil.copy(GOLDEN / "first_frames.json", golden)
    code, output, _ = command("golden", golden)
    assert code == EXIT_INPUT
    assert "STATEPLAY_CLIPS" in output


@pytest.mark.parametrize("verb", ["golden", "dir"])
def test_foreign_folders_exit_3_and_write_nothing(tmp_path, verb):
    (tmp_path / "foreign").mkdir()
    for target in ("foreign", "absent"):
        assert command(verb, tmp_path / target)[0] == EXIT_INPUT
    assert list(tmp_path.glob("verify-*")) == []


def test_a_record_inside_what_is_verified_is_refused(golden, tmp_path):
    before = sorted(golden.iterdir())
    code, _, _ = command("golden", golden, "--out", golden / "record")
    assert code == EXIT_USAGE
    assert sorted(golden.iterdir()) == before
    scores = write_chain(tmp_path)
    with pytest.raises(OutputError, match="protected"):
        run(DirectoryConfig(path=scores), scores / "record")


def test_an_existing_record_is_kept_unless_told(golden, tmp_path):
    run(GoldenConfig(folder=golden), tmp_path / "record")
    assert command("golden", golden, "--out", tmp_path / "record")[0] == EXIT_USAGE
    assert command("golden", golden, "--out", tmp_path / "record", "--overwrite")[0] == 0


def test_a_relative_record_goes_below_the_run_root(golden, tmp_path, monkeypatch):
    monkeypatch.setenv("RL_RUN_ROOT", str(tmp_path / "runs"))
    assert run(GoldenConfig(folder=golden)).out.parent == tmp_path / "runs"
    assert command("golden", golden, "--out", "mine")[0] == 0
    assert (tmp_path / "runs" / "mine" / layout.VERIFY).is_file()


def test_dir_passes_and_fails_with_its_exit_code(tmp_path):
    scores = write_chain(tmp_path)
    code, output, _ = command("dir", scores)
    assert code == 0
    assert "scores <- groups <- conditions: files" in output
    (tmp_path / "conditions" / layout.CONFIG).write_text("changed: true")
    code, output, error = command("dir", scores)
    assert code == EXIT_CHECK
    assert "scores <- groups <- conditions: files" in str(error)
    assert "config.yaml" in output


def test_dir_finds_moved_inputs_through_search(tmp_path):
    scores = write_chain(tmp_path)
    (tmp_path / "attic").mkdir()
    shutil.move(tmp_path / "groups", tmp_path / "attic" / "groups")
    code, output, _ = command("dir", scores)
    assert code == 0
    assert "skipped" in output
    code, output, _ = command("dir", scores, "--no-replay", "--search", tmp_path / "attic", "--search", tmp_path)
    assert code == 0
    assert "skipped" not in output


def test_a_damaged_manifest_exits_4_not_3(tmp_path):
    scores = write_chain(tmp_path)
    (scores / layout.MANIFEST).write_text("{")
    assert command("dir", scores)[0] == EXIT_CHECK


def test_install_reports_every_check(monkeypatch, tmp_path):
    monkeypatch.setattr(install, "CHECKS", (("good", lambda: "fine"), ("bad", lambda: require(False, "3 is not 4"))))
    summary = run(InstallConfig(), tmp_path / "record")
    assert [line.status for line in summary.lines] == ["passed", "failed"]
    code, output, error = command("install", "--out", tmp_path / "other")
    assert code == EXIT_CHECK
    assert "3 is not 4" in output
    assert "1 of 2 checks failed: bad" in str(error)


def test_clips_come_from_the_environment_or_the_option(golden, tmp_path, monkeypatch):
    monkeypatch.setenv("STATEPLAY_CLIPS", str(tmp_path / "clips"))
    command("golden", golden, "--out", tmp_path / "one")
    assert read_manifest(tmp_path / "one").config["clips"] == str(tmp_path / "clips")
    command("golden", golden, "--clips", tmp_path / "others", "--out", tmp_path / "two")
    assert read_manifest(tmp_path / "two").config["clips"] == str(tmp_path / "others")


def test_nothing_is_written_when_the_target_vanishes(tmp_path):
    with pytest.raises(InputError):
        run(DirectoryConfig(path=tmp_path / "absent"), tmp_path / "record")
    assert not (tmp_path / "record").exists()


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from typer.testing import CliRunner; from stateplay_rl.cli import verify;"
        "assert CliRunner().invoke(verify.app, ['golden', '--help']).exit_code == 0;"
        "print([m for m in ('torch', 'numpy', 'diffusers', 'pyarrow', 'PIL') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_option_has_help():
    for verb in ("install", "dir", "golden", "signal"):
        result = CliRunner().invoke(cli.app, [verb, "--help"])
        assert result.exit_code == 0
        assert "--out" in result.output
