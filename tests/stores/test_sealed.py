"""Reading manifests: foreign, unfinished, damaged, older, newer, moved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.errors import CorruptionError, InputError, UnsealedError
from stateplay_rl.stores.sealed import file_problems, find_input, read_checked, read_manifest
from tests.stores.helpers import open_out, sealed


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "manifest.json"
    raw = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))


def test_missing_file_unsealed_and_foreign_directories(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnsealedError, match="no manifest"):
        read_manifest(tmp_path / "plain")
    with pytest.raises(InputError, match="does not exist"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is a file"):
        read_manifest(tmp_path / "file", schema="groups")
    (tmp_path / "plain" / "manifest.json").write_text('{"name": "a web extension"}')
    with pytest.raises(InputError, match="not an sprl manifest"):
        read_manifest(tmp_path / "plain")


def test_unfinished_names_the_command_to_run(tmp_path: Path) -> None:
    open_out(tmp_path / "out").close()
    with pytest.raises(UnsealedError) as caught:
        read_manifest(tmp_path / "out", schema="groups")
    assert f"sprl rollout ... --out {tmp_path / 'out'} --resume" in caught.value.hint


def test_another_kind_of_directory(tmp_path: Path) -> None:
    sealed(tmp_path / "g")
    with pytest.raises(InputError, match="kind 'groups', one of kind 'conditions' is needed"):
        read_manifest(tmp_path / "g", schema="conditions")


def test_older_schemas_are_read_and_newer_ones_refused(tmp_path: Path) -> None:
    sealed(tmp_path / "g")
    edit(tmp_path / "g", schema={"name": "groups", "version": 0})
    assert read_manifest(tmp_path / "g").schema_version == 0
    edit(tmp_path / "g", schema={"name": "groups", "version": 99})
    with pytest.raises(InputError, match="version 99, this sprl reads up to 1") as caught:
        read_manifest(tmp_path / "g", schema="groups")
    assert "upgrade" in caught.value.hint
    edit(tmp_path / "g", schema={"name": "sandwich", "version": 1})
    with pytest.raises(InputError, match="sandwich"):
        read_manifest(tmp_path / "g")


@pytest.mark.parametrize("field", ["run_id", "files", "inputs", "config", "gpus"])
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    sealed(tmp_path / "g")
    edit(tmp_path / "g", **{field: None})
    with pytest.raises(CorruptionError, match=f"lacks field '{field}'"):
        read_manifest(tmp_path / "g")


def test_a_truncated_manifest_is_corrupt(tmp_path: Path) -> None:
    sealed(tmp_path / "g")
    file = tmp_path / "g" / "manifest.json"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(CorruptionError, match="not valid JSON"):
        read_manifest(tmp_path / "g")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x"])
def test_a_file_name_cannot_point_outside(tmp_path: Path, name: str) -> None:
    sealed(tmp_path / "g")
    edit(tmp_path / "g", files={name: {"size": 1, "sha256": "0"}})
    with pytest.raises(CorruptionError, match="outside the directory"):
        read_manifest(tmp_path / "g")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: f.write_text("HELLO"), "does not match its sha256"),
        (lambda f: f.write_text("hell"), "has 4 bytes, the manifest says 5"),
        (lambda f: f.unlink(), "is missing"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage, message: str) -> None:
    sealed(tmp_path / "g")
    damage(tmp_path / "g" / "data" / "a.txt")
    manifest = read_manifest(tmp_path / "g")
    with pytest.raises(CorruptionError, match=rf"data/a\.txt {message}"):
        read_manifest(tmp_path / "g", verify_files=True)
    with pytest.raises(CorruptionError, match=r"a\.txt"):
        read_checked(manifest, "data/a.txt")
    assert len(list(file_problems(manifest))) == 1


def test_a_file_that_is_not_recorded_is_refused(tmp_path: Path) -> None:
    manifest = sealed(tmp_path / "g")
    (tmp_path / "g" / "extra").write_text("x")
    with pytest.raises(CorruptionError, match="not in the manifest"):
        read_checked(manifest, "extra")


def test_moving_everything_or_one_side_breaks_nothing(tmp_path: Path) -> None:
    sealed(tmp_path / "a" / "in", schema="conditions")
    sealed(tmp_path / "a" / "out", inputs={"conditions": tmp_path / "a" / "in"})
    assert find_input(read_manifest(tmp_path / "a" / "out"), "conditions") == tmp_path / "a" / "in"
    (tmp_path / "a").rename(tmp_path / "b")
    manifest = read_manifest(tmp_path / "b" / "out", verify_files=True)
    assert find_input(manifest, "conditions") == tmp_path / "b" / "in"
    (tmp_path / "b" / "in").rename(tmp_path / "elsewhere")
    assert find_input(manifest, "conditions", [tmp_path]) == tmp_path / "elsewhere"
    with pytest.raises(InputError, match="was not found"):
        find_input(manifest, "conditions")
    with pytest.raises(InputError, match="records no input 'world'"):
        find_input(manifest, "world")


def test_another_directory_at_the_old_place_is_not_taken(tmp_path: Path) -> None:
    sealed(tmp_path / "in", schema="conditions")
    sealed(tmp_path / "out", inputs={"conditions": tmp_path / "in"})
    shutil.rmtree(tmp_path / "in")
    sealed(tmp_path / "in", "another", schema="conditions")
    with pytest.raises(InputError, match="was not found"):
        find_input(read_manifest(tmp_path / "out"), "conditions")


def test_an_extended_run_is_still_found_by_its_earlier_hash(tmp_path: Path) -> None:
    sealed(tmp_path / "run", schema="run")
    sealed(tmp_path / "out", schema="scores", inputs={"run": tmp_path / "run"})
    open_out(tmp_path / "run", schema="run", resume=True, extend=True).seal()
    assert find_input(read_manifest(tmp_path / "out"), "run") == tmp_path / "run"


def test_an_input_file_is_found_by_its_hash(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"w")
    manifest = sealed(tmp_path / "out", inputs={"weights": tmp_path / "w.bin"})
    assert find_input(manifest, "weights") == tmp_path / "w.bin"
