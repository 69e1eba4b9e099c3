"""Output directories: refusals, resume, overwrite, sealing, one rule of the format at a time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from stateplay_rl.errors import (
    CorruptionError,
    InputError,
    OutputError,
    OutsideError,
    UnsealedError,
    UsageError,
)
from stateplay_rl.stores import atomic
from stateplay_rl.stores.manifest import OutputDirectory, read_manifest
from tests.stores.helpers import Config, Inner, open_out, sealed


def names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_the_manifest_says_all_that_the_format_asks_for(tmp_path: Path) -> None:
    source = sealed(tmp_path / "in", schema="conditions")
    out = open_out(tmp_path / "out", inputs={"conditions": tmp_path / "in"})
    out.write_bytes("a.bin", b"abc")
    out.file("sub/b.txt").write_text("plain")
    manifest = out.seal(extra={"groups": 3}, seeds={"base": 5})
    raw = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert raw["schema"] == {"name": "groups", "version": 1}
    assert raw["config"] == Config().model_dump()
    assert raw["seeds"] == {"base": 5}
    assert raw["extra"] == {"groups": 3}
    assert raw["started_utc"] <= raw["ended_utc"]
    assert raw["ended_utc"].endswith("Z")
    assert raw["world_size"] == 1
    assert {
        "sprl",
        "git_commit",
        "torch",
        "accelerate",
        "diffusers",
        "transformers",
        "peft",
        "cuda",
        "driver",
    } <= set(raw["versions"])
    assert raw["inputs"]["conditions"] == {
        "sha256": source.sha256,
        "path": "../in",
        "schema_name": "conditions",
    }
    assert set(raw["files"]) == {"a.bin", "sub/b.txt", "config.yaml"}
    assert raw["files"]["a.bin"] == {"size": 3, "sha256": atomic.sha256_bytes(b"abc")}
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text()) == Config().model_dump()
    assert names(tmp_path / "out") == ["a.bin", "config.yaml", "manifest.json", "sub/b.txt"]
    assert manifest == read_manifest(tmp_path / "out", schema="groups", verify_files=True)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_kill_while_sealing_leaves_an_unfinished_directory(tmp_path: Path, monkeypatch, step: str) -> None:
    out = open_out(tmp_path / "out")
    out.write_text("a.txt", "done")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, step, killed)
        with pytest.raises(KeyboardInterrupt):
            out.seal()
    out.close()
    with pytest.raises(UnsealedError, match="unfinished"):
        read_manifest(tmp_path / "out")
    again = open_out(tmp_path / "out", resume=True)
    assert again.resumed
    assert read_manifest(again.path) if again.already_sealed else again.seal()
    assert names(tmp_path / "out") == ["a.txt", "config.yaml", "manifest.json"]


def test_unfinished_needs_resume_which_keeps_run_id_and_start(tmp_path: Path) -> None:
    with open_out(tmp_path / "out") as first:
        first.write_text("a.txt", "kept")
    with pytest.raises(OutputError, match="unfinished") as caught:
        open_out(tmp_path / "out")
    assert "--resume" in caught.value.hint
    (tmp_path / "out" / f".b.txt{'.sprl-tmp-'}9").write_text("half")
    with open_out(tmp_path / "out", resume=True) as second:
        assert (second.record.run_id, second.record.started_utc) == (
            first.record.run_id,
            first.record.started_utc,
        )
        manifest = second.seal()
    assert manifest.run_id == first.record.run_id
    assert sorted(manifest.files) == ["a.txt", "config.yaml"]


def test_resume_of_nothing_begins(tmp_path: Path) -> None:
    with open_out(tmp_path / "new", resume=True) as out:
        assert not out.resumed


def test_sealed_is_refused_without_overwrite_and_resume_does_nothing(tmp_path: Path) -> None:
    before = sealed(tmp_path / "out")
    with pytest.raises(OutputError, match="finished"):
        open_out(tmp_path / "out")
    with open_out(tmp_path / "out", resume=True) as again:
        assert again.already_sealed
        with pytest.raises(ValueError, match="sealed"):
            again.seal()
    assert read_manifest(tmp_path / "out", verify_files=True).sha256 == before.sha256
    with open_out(tmp_path / "out", overwrite=True) as out:
        assert names(out.path) == [".sprl-lock", "config.yaml", "unfinished.json"]
        assert out.record.run_id != before.run_id


def test_foreign_is_refused_without_overwrite(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years")
    for resume in (False, True):
        with pytest.raises(OutputError, match=r"thesis\.tex"):
            open_out(tmp_path / "out", resume=resume)
    assert names(tmp_path / "out") == ["thesis.tex"]
    with open_out(tmp_path / "out", overwrite=True) as out:
        assert "thesis.tex" not in names(out.path)


def test_a_file_as_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(OutputError, match="is a file"):
        open_out(tmp_path / "out")


def test_resume_and_overwrite_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exclude"):
        open_out(tmp_path / "out", resume=True, overwrite=True)
    assert not (tmp_path / "out").exists()


def test_overwrite_never_empties_a_working_directory_or_checkout(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "work" / "a").write_text("x")
    monkeypatch.chdir(tmp_path / "work" / "sub")
    with pytest.raises(OutputError, match="working directory"):
        open_out(tmp_path / "work", overwrite=True)
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    with pytest.raises(OutputError, match="checkout"):
        open_out(tmp_path / "repo", overwrite=True)
    assert (tmp_path / "work" / "a").read_text() == "x"


def test_a_changed_config_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    open_out(tmp_path / "out").close()
    with pytest.raises(UsageError, match=r"inner\.rate: was 0\.5, now 0\.25") as caught:
        open_out(tmp_path / "out", resume=True, config=Config(inner=Inner(rate=0.25)))
    assert "seed" not in caught.value.what
    sealed(tmp_path / "done")
    with pytest.raises(UsageError, match="seed: was 1, now 2"):
        open_out(tmp_path / "done", resume=True, config=Config(seed=2))


def test_keys_that_do_not_change_the_meaning_may_change(tmp_path: Path) -> None:
    open_out(tmp_path / "out").close()
    with open_out(tmp_path / "out", resume=True, config=Config(workers=8)) as out:
        assert out.seal().config["workers"] == 8
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["workers"] == 8


def test_changed_inputs_commands_and_schemas_are_refused_at_resume(tmp_path: Path) -> None:
    sealed(tmp_path / "in1", "one", schema="conditions")
    sealed(tmp_path / "in2", "two", schema="conditions")
    open_out(tmp_path / "out", inputs={"conditions": tmp_path / "in1"}).close()
    with pytest.raises(UsageError, match="another input 'conditions'"):
        open_out(tmp_path / "out", resume=True, inputs={"conditions": tmp_path / "in2"})
    with pytest.raises(OutputError, match="'groups'"):
        open_out(tmp_path / "out", resume=True, schema="scores")
    with pytest.raises(UsageError, match="begun by `sprl rollout`"):
        open_out(tmp_path / "out", resume=True, command="score", inputs={"conditions": tmp_path / "in1"})
    (tmp_path / "in1").rename(tmp_path / "moved")
    with open_out(tmp_path / "out", resume=True, inputs={"conditions": tmp_path / "moved"}) as out:
        assert out.seal().inputs["conditions"].path == "../moved"


def test_two_writers_exclude_each_other(tmp_path: Path) -> None:
    with open_out(tmp_path / "out"), pytest.raises(OutputError, match="in use"):
        open_out(tmp_path / "out", resume=True)


@pytest.mark.parametrize("out", ["in", "in/below", "."])
@pytest.mark.parametrize("how", ["inputs", "protected"])
def test_overlaps_are_refused_before_anything_is_written(tmp_path: Path, out: str, how: str) -> None:
    sealed(tmp_path / "root" / "in")
    before = names(tmp_path)
    given = {"x": tmp_path / "root" / "in"} if how == "inputs" else [tmp_path / "root" / "in"]
    for flags in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(OutputError, match=r"same as or lies inside|would contain"):
            open_out(tmp_path / "root" / out, **{how: given}, **flags)
    assert names(tmp_path) == before


def test_overlaps_are_seen_through_symlinks(tmp_path: Path) -> None:
    sealed(tmp_path / "in")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "up").symlink_to(tmp_path)
    for out, given in [
        ("link/x", "in"),
        ("in/x", "link"),
        ("link", "in"),
        ("other/up", "in"),
        ("other/up/in/y", "in"),
    ]:
        with pytest.raises(OutputError):
            open_out(tmp_path / out, inputs={"x": tmp_path / given}, overwrite=True)
    assert read_manifest(tmp_path / "in", verify_files=True)


def test_a_protected_file_cannot_lie_in_the_output(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    checkpoint = tmp_path / "models" / "step-4572.safetensors"
    checkpoint.write_bytes(b"weights")
    with pytest.raises(OutputError, match="would contain"):
        open_out(tmp_path / "models", protected=[checkpoint], overwrite=True)
    assert checkpoint.read_bytes() == b"weights"
    with open_out(tmp_path / "models2", protected=[checkpoint], inputs={"checkpoint": checkpoint}) as out:
        assert out.seal().inputs["checkpoint"].sha256 == atomic.sha256_bytes(b"weights")


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere does not exist"):
        open_out(tmp_path / "out", inputs={"conditions": tmp_path / "nowhere"})
    assert not (tmp_path / "out").exists()


def test_a_file_changed_after_it_was_hashed_is_hashed_again(tmp_path: Path) -> None:
    out = open_out(tmp_path / "out")
    with out.writer("log.bin") as writer:
        writer.write(b"one")
    with (out.path / "log.bin").open("ab") as file:
        file.write(b" two")
    assert out.seal().files["log.bin"].sha256 == atomic.sha256_bytes(b"one two")


def test_hashed_files_are_not_read_again_when_sealing(tmp_path: Path, monkeypatch) -> None:
    out = open_out(tmp_path / "out")
    out.write_bytes("big.bin", bytes(100))
    read: list[str] = []
    real = atomic.sha256_file
    monkeypatch.setattr(atomic, "sha256_file", lambda path: (read.append(path.name), real(path))[1])
    out.seal()
    assert read == ["config.yaml"]


def test_a_nested_sealed_directory_answers_for_its_own_files(tmp_path: Path) -> None:
    run = open_out(tmp_path / "run", schema="run")
    sealed(run.path / "segments" / "000-a", schema="segment")
    manifest = run.seal()
    assert sorted(manifest.files) == ["config.yaml", "segments/000-a/manifest.json"]
    (run.path / "segments" / "000-a" / "data" / "a.txt").write_text("HELLO")
    with pytest.raises(CorruptionError, match=r"000-a/data/a\.txt"):
        read_manifest(tmp_path / "run", verify_files=True)


def test_extending_keeps_the_earlier_manifest_and_the_run_id(tmp_path: Path) -> None:
    before = sealed(tmp_path / "run", schema="run")
    with open_out(tmp_path / "run", schema="run", resume=True, extend=True, config=Config(seed=9)) as run:
        assert not run.already_sealed
        with pytest.raises(UnsealedError):
            read_manifest(run.path)
        run.write_text("b.txt", "more")
        after = run.seal()
    assert after.run_id == before.run_id
    assert after.config["seed"] == 9
    assert after.extra["earlier_manifests"] == [before.sha256]
    assert after.files["manifest-000.json"].sha256 == before.sha256


def test_a_full_disk_leaves_what_was_finished_valid(tmp_path: Path, monkeypatch) -> None:
    out = open_out(tmp_path / "out")
    out.write_text("a.txt", "done")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutsideError, match="bytes needed"):
            out.write_text("b.txt", "more")
    out.close()
    with open_out(tmp_path / "out", resume=True) as again:
        assert sorted(again.seal().files) == ["a.txt", "config.yaml"]


def test_a_damaged_unfinished_record_is_named(tmp_path: Path) -> None:
    open_out(tmp_path / "out").close()
    file = tmp_path / "out" / "unfinished.json"
    record = json.loads(file.read_text())
    del record["run_id"]
    file.write_text(json.dumps(record))
    with pytest.raises(CorruptionError, match=r"unfinished\.json"):
        open_out(tmp_path / "out", resume=True)


def test_a_newer_unfinished_directory_is_refused(tmp_path: Path) -> None:
    open_out(tmp_path / "out", version=2).close()
    with pytest.raises(OutputError, match="version 2"):
        open_out(tmp_path / "out", resume=True)


def test_the_class_is_the_documented_entry() -> None:
    assert OutputDirectory.open.__doc__
