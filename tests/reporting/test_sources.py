"""Recognising directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.errors import InputError, UnsealedError, UsageError
from stateplay_rl.reporting.sources import lineage_of, open_sources
from tests.reporting.conftest import Dirs
from tests.reporting.fixture_dirs import FixtureConfig, open_output


def test_sealed_and_open_directories(dirs: Dirs) -> None:
    run, opened = open_sources([dirs.run, dirs.open_run])
    assert (run.schema, run.finished, run.key) == ("run", True, "run")
    assert (opened.schema, opened.finished) == ("run", False)
    assert opened.config["control"] == "none"


def test_refusals_name_the_path(dirs: Dirs, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more than once"):
        open_sources([dirs.run, dirs.root / "." / "run"])
    with pytest.raises(UsageError):
        open_sources([])
    with pytest.raises(InputError, match="absent"):
        open_sources([tmp_path / "absent"])
    with pytest.raises(UnsealedError):
        open_sources([tmp_path])
    open_output(tmp_path / "half", "groups", {}, FixtureConfig()).close()
    with pytest.raises(UnsealedError, match="unfinished groups"):
        open_sources([tmp_path / "half"])


def test_equal_names_are_told_apart(dirs: Dirs, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "audit"
    from tests.reporting.fixture_dirs import make_audit

    make_audit(other)
    first, second = open_sources([dirs.audit, other])
    assert second.name == "elsewhere/audit"
    assert first.key != second.key


def test_lineage_names_inputs_files_and_hashes(dirs: Dirs, tmp_path: Path) -> None:
    (source,) = open_sources([dirs.run])
    lineage = lineage_of(source, tmp_path / "report")
    assert source.manifest is not None
    assert dict(lineage.facts)["run id"] == source.manifest.run_id
    ((name, _, sha256),) = lineage.inputs
    assert name == "conditions"
    assert len(sha256) == 64
    assert "metrics.jsonl" in {file for file, _, _ in lineage.files} or lineage.files_left_out
    assert "control: none" in lineage.config_yaml
