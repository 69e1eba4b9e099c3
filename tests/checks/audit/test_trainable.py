"""Which audits `train-nft` accepts: a passed one of the very files of its world."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stateplay_rl.checks.audit.expected import TRANSFORMER
from stateplay_rl.checks.audit.record import AUDIT_KEYS
from stateplay_rl.checks.audit.trainable import require_trainable_audit
from stateplay_rl.config.audit import AuditConfig
from stateplay_rl.errors import CheckError, CorruptionError, InputError, UnsealedError
from stateplay_rl.stages.audit_ckpt import AuditMode, run
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.worlds.world_files import resolve_world
from tests.checks.audit.audit_world import FILES, Arrays

DELTA = "latent_state_rollout.transition.delta.weight"


@pytest.fixture
def audited(write_world: Callable[..., Path], tmp_path: Path) -> tuple[Path, str]:
    """A passed audit and its world file."""
    world = str(write_world() / "world.yaml")
    summary = run(AuditConfig(world=world), tmp_path / "audit")
    assert summary.verdict == "passed"
    return summary.out, world


def test_a_passed_audit_of_these_files_is_accepted(audited: tuple[Path, str]) -> None:
    folder, world = audited
    assert require_trainable_audit(folder, resolve_world(world), world)["verdict"] == "passed"


def test_the_same_bytes_elsewhere_are_the_same_files(audited: tuple[Path, str]) -> None:
    folder, world = audited
    moved = Path(world).parent.with_name("moved")
    Path(world).parent.rename(moved)
    os.utime(moved / FILES[TRANSFORMER])
    require_trainable_audit(folder, resolve_world(str(moved / "world.yaml")), world)


def test_changed_bytes_of_equal_size_are_another_file(audited: tuple[Path, str]) -> None:
    folder, world = audited
    path = Path(world).parent / FILES[TRANSFORMER]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(0, 0))
    with pytest.raises(CheckError, match="of other files"):
        require_trainable_audit(folder, resolve_world(world), world)


def test_no_audit_and_a_missing_one_name_the_command(audited: tuple[Path, str], tmp_path: Path) -> None:
    _, world = audited
    with pytest.raises(CheckError) as none:
        require_trainable_audit(None, resolve_world(world), world)
    assert f"sprl audit-ckpt --world {world}" in none.value.hint
    with pytest.raises(InputError, match="no audit directory"):
        require_trainable_audit(tmp_path / "nowhere", resolve_world(world), world)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnsealedError):
        require_trainable_audit(tmp_path / "empty", resolve_world(world), world)


def test_an_edited_audit_is_corrupt(audited: tuple[Path, str]) -> None:
    folder, world = audited
    file = folder / "audit.json"
    file.write_text(file.read_text().replace('"passed"', '"failed"'))
    with pytest.raises(CorruptionError):
        require_trainable_audit(folder, resolve_world(world), world)


def without(folder: Path, key: str) -> None:
    """Make a sealed audit what an sprl that did not know `key` would have written."""
    file, manifest = folder / layout.AUDIT, folder / layout.MANIFEST
    audit = json.loads(file.read_text())
    del audit[key]
    file.write_text(json.dumps(audit))
    record = json.loads(manifest.read_text())
    record["files"][layout.AUDIT] = {"size": file.stat().st_size, "sha256": sha256_file(file)}
    record["versions"]["sprl"] = "0.0.9"
    manifest.write_text(json.dumps(record))


def test_an_audit_of_an_older_sprl_is_old_and_not_damaged(audited: tuple[Path, str]) -> None:
    folder, world = audited
    without(folder, "settings_sha256")
    with pytest.raises(CheckError, match=r"is old: sprl 0\.0\.9 did not record settings_sha256") as old:
        require_trainable_audit(folder, resolve_world(world), world)
    assert old.value.hint == f"run `sprl audit-ckpt --world {world} --overwrite`"
    with pytest.raises(CheckError, match="is old"):
        run(AuditConfig(world=world), folder, AuditMode(resume=True))
    assert run(AuditConfig(world=world), folder, AuditMode(overwrite=True)).verdict == "passed"
    assert require_trainable_audit(folder, resolve_world(world), world)["verdict"] == "passed"


def test_what_this_version_writes_is_what_it_reads_back(audited: tuple[Path, str]) -> None:
    folder, _ = audited
    assert set(json.loads((folder / layout.AUDIT).read_text())) == set(AUDIT_KEYS)


def test_partial_failed_and_initialised_audits_are_refused(write_world: Callable[..., Path], tmp_path: Path) -> None:
    folder = write_world()
    world = str(folder / "world.yaml")
    partial = run(AuditConfig(checkpoint=folder / FILES[TRANSFORMER]), tmp_path / "partial")
    with pytest.raises(CheckError, match="is partial") as refusal:
        require_trainable_audit(partial.out, resolve_world(world), world)
    assert "--tokenizer" in refusal.value.hint

    def spoil(component: str, arrays: Arrays) -> None:
        if component == TRANSFORMER:
            arrays.pop(DELTA)

    write_world(spoil)
    failed = run(AuditConfig(world=world), tmp_path / "failed")
    with pytest.raises(CheckError, match="is failed"):
        require_trainable_audit(failed.out, resolve_world(world), world)
    inspected = run(AuditConfig(world=world, allow_init=True), tmp_path / "inspected")
    assert inspected.verdict == "passed"
    with pytest.raises(CheckError, match="allow-init"):
        require_trainable_audit(inspected.out, resolve_world(world), world)


def test_a_scan_of_good_values_is_trainable(write_world: Callable[..., Path], tmp_path: Path) -> None:
    world = str(write_world() / "world.yaml")
    summary = run(AuditConfig(world=world, scan=True), tmp_path / "audit", AuditMode())
    assert summary.audit["trainable"]
    assert np.all([file["sha256"] for file in summary.audit["files"]])
