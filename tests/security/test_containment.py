"""Names out of files never lead out of their directory: whatever record they stand in."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stateplay_rl.checks.directory import run_directory
from stateplay_rl.errors import SprlError
from stateplay_rl.judges.plugin import split_name
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupRow, GroupStore, read_groups_parquet, write_groups_parquet
from stateplay_rl.stores.requests import read_raw
from stateplay_rl.stores.sealed import file_problems, read_manifest
from tests.checks.directories import write_chain

OUT = ["../outside", "../../outside", "/etc/passwd", "a/../../outside", "..", "a\\..\\..\\outside", "a\0b"]


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    write_chain(tmp_path / "chain")
    (tmp_path / "outside").write_text("secret")
    return tmp_path / "chain"


def reseal(folder: Path) -> None:
    file = folder / layout.MANIFEST
    manifest = json.loads(file.read_text())
    for name, ref in manifest["files"].items():
        ref.update(size=(folder / name).stat().st_size, sha256=sha256_file(folder / name))
    file.write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", OUT)
def test_group_ids(chain: Path, name: str) -> None:
    store = GroupStore(chain / "groups")
    with pytest.raises(SprlError):
        store.read(name)


@pytest.mark.parametrize("name", OUT)
def test_rows_of_the_group_index(chain: Path, name: str) -> None:
    file = chain / "groups" / layout.GROUPS
    rows = read_groups_parquet(file)
    write_groups_parquet(file, [replace(rows[0], group_id=name), *rows[1:]])
    reseal(chain / "groups")
    lines = run_directory(chain / "groups")
    assert {line.name for line in lines if line.status == "failed"} == {"groups: index"}
    assert isinstance(rows[0], GroupRow)


@pytest.mark.parametrize("name", OUT)
def test_files_of_a_group(chain: Path, name: str) -> None:
    file = chain / "groups" / "g-c0" / layout.GROUP
    value = json.loads(file.read_text())
    value["files"][name] = "0" * 64
    file.write_text(json.dumps(value))
    with pytest.raises(SprlError, match=r"group\.json|file"):
        GroupStore(chain / "groups").read("g-c0")


@pytest.mark.parametrize("name", OUT)
def test_files_of_a_manifest(chain: Path, name: str) -> None:
    file = chain / "scores" / layout.MANIFEST
    manifest = json.loads(file.read_text())
    manifest["files"][name] = {"size": 6, "sha256": "0" * 64}
    file.write_text(json.dumps(manifest))
    if name == "..":
        pass
    with pytest.raises(SprlError, match="outside the directory"):
        list(file_problems(read_manifest(chain / "scores")))


@pytest.mark.parametrize("name", OUT)
def test_conditions_ids(chain: Path, name: str) -> None:
    store = ConditionStore.open(chain / "conditions")
    with pytest.raises(SprlError):
        store.first_frame(name)
    with pytest.raises(SprlError):
        store.raw_actions(name)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../outside"])
def test_clips_of_conditions(chain: Path, name: str) -> None:
    store = ConditionStore.open(chain / "conditions", data_root=chain)
    with pytest.raises(SprlError):
        store.clip_path(replace(store.records[0], clip=name))


def test_a_clip_linked_from_outside(chain: Path) -> None:
    os.symlink(chain.parent / "outside", chain / "clip.mp4")
    store = ConditionStore.open(chain / "conditions", data_root=chain)
    with pytest.raises(SprlError):
        store.clip_path(replace(store.records[0], clip="clip.mp4"))


@pytest.mark.parametrize("name", OUT)
def test_request_ids(chain: Path, name: str) -> None:
    with pytest.raises((SprlError, ValueError)):
        read_raw(chain, name)


@pytest.mark.parametrize("name", [*OUT, "os:system", "a.b:c.d", "a..b:C", "__import__('os'):X", "a:B:C"])
def test_plug_in_names(name: str) -> None:
    if name == "os:system":
        assert split_name(name) == ("os", "system")  # a plain name: it is loaded, and is no judge
        return
    with pytest.raises(SprlError):
        split_name(name)


def test_a_file_replaced_by_a_link_is_found(chain: Path) -> None:
    """The link's target has other bytes: the hash says so, wherever it leads."""
    file = chain / "scores" / layout.SCORES
    file.unlink()
    os.symlink(chain.parent / "outside", file)
    assert any(line.status == "failed" for line in run_directory(chain / "scores"))


def test_nothing_outside_was_touched(chain: Path) -> None:
    shutil.rmtree(chain)
    assert (chain.parent / "outside").read_text() == "secret"
