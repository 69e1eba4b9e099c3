"""Recognising directories."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stateplay_rl.errors import InputError, UnsealedError, UsageError
from stateplay_rl.reporting.lineage import lineage_of
from stateplay_rl.reporting.sources import open_sources
from stateplay_rl.stores.manifest import manifest_sha256
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


def test_the_chain_goes_back_over_the_inputs_and_says_what_is_gone(dirs: Dirs, tmp_path: Path) -> None:
    moved = tmp_path / "run"
    shutil.copytree(dirs.run, moved)
    for path, here in ((dirs.run, True), (moved, False)):
        (source,) = open_sources([path])
        steps = {step.what: step for step in lineage_of(source, tmp_path / "report").steps}
        assert steps["conditions"].sha256 == manifest_sha256(dirs.conditions)
        assert steps["conditions"].place.endswith("(not found from here)") is not here
    (source,) = open_sources([moved])
    found = {step.what: step for step in lineage_of(source, tmp_path / "report", search=[dirs.root]).steps}
    assert "not found" not in found["conditions"].place


def test_hashes_of_a_pages_files_are_at_hand_but_not_those_of_single_groups(dirs: Dirs, tmp_path: Path) -> None:
    (source,) = open_sources([dirs.run])
    index = dict(lineage_of(source, tmp_path / "report").index)
    assert source.manifest is not None
    assert index["metrics.jsonl"] == source.manifest.files["metrics.jsonl"].sha256
    assert not [name for name in index if name.endswith(".mp4")]
