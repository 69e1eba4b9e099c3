"""`sprl audit-ckpt` as a stage and on the command line: what is written, exit codes, protection."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from stateplay_rl.checks.audit.expected import TRANSFORMER, expected_tensors
from stateplay_rl.cli import audit_ckpt as cli
from stateplay_rl.config.audit import AuditConfig
from stateplay_rl.errors import CheckError, InputError, OutputError, SprlError, UsageError
from stateplay_rl.stages.audit_ckpt import AuditMode, run
from stateplay_rl.stores.manifest import read_manifest
from tests.checks.audit.audit_world import FILES, world_text

GOLDEN = Path(__file__).parents[2] / "golden"
WriteWorld = Callable[..., Path]

app = typer.Typer()
app.command()(cli.command)


def invoke(*arguments: str) -> tuple[int, str]:
    """Exit code as the error boundary would give it, and what was printed."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    if isinstance(result.exception, SprlError):
        return result.exception.exit_code, result.output + str(result.exception)
    return result.exit_code, result.output


def test_a_world_is_audited_sealed_and_documented(write_world: WriteWorld, tmp_path: Path) -> None:
    folder = write_world()
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.iterdir()}
    code, text = invoke("--world", str(folder / "world.yaml"), "--out", str(tmp_path / "audit"))
    assert code == 0, text
    assert "passed" in text
    manifest = read_manifest(tmp_path / "audit", schema="audit", verify_files=True)
    assert manifest.extra["verdict"] == "passed"
    audit = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert {f["role"] for f in audit["files"]} == {"sft", "base", "tokenizer", "text_tokenizer"}
    rows = pq.read_table(tmp_path / "audit" / "provenance.parquet").to_pylist()
    assert len(rows) == len(expected_tensors("arena"))
    assert all(row["source_sha256"] for row in rows)
    hashes = {f["path"]: f["sha256"] for f in audit["files"]}
    assert {row["source_sha256"] for row in rows if row["source"] == "sft"} == {
        hashes[str(folder / FILES[TRANSFORMER])]
    }
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.iterdir()} == before


def test_a_scoped_file_alone_is_partial_exit_4(
    write_world: WriteWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_world() / FILES[TRANSFORMER]
    scoped = checkpoint.with_name("step-4572.safetensors")
    checkpoint.rename(scoped)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_RUN_ROOT", raising=False)
    code, text = invoke(str(scoped))
    assert code == 4
    assert "the audit is partial" in text
    assert f"sprl audit-ckpt {scoped} --base BASE_MODEL_FOLDER --tokenizer" in text
    assert json.loads((tmp_path / "audit-step-4572" / "audit.json").read_text())["verdict"] == "partial"


def test_the_default_output_goes_below_the_run_root(
    write_world: WriteWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_RUN_ROOT", str(tmp_path / "runs"))
    summary = run(AuditConfig(world=str(write_world() / "world.yaml")))
    assert summary.out == tmp_path / "runs" / "audit-world"


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "empty"),
        (b"<!doctype html>", "HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\nsize 7\n", "Git LFS pointer"),
    ],
)
def test_files_that_are_no_checkpoint_exit_4_and_say_why(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    code, text = invoke(str(path), "--out", str(tmp_path / "audit"))
    assert code == 4
    assert words in text
    assert json.loads((tmp_path / "audit" / "audit.json").read_text())["files"][0]["state"] == "not_weights"


def test_an_explicit_state_checkpoint_is_refused(tmp_path: Path) -> None:
    path = GOLDEN / "explicit_state_checkpoint.safetensors"
    code, text = invoke(str(path), "--out", str(tmp_path / "audit"))
    assert code == 4
    assert "explicit-state model" in text


def test_wrong_paths_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not found"):
        run(AuditConfig(checkpoint=tmp_path / "nowhere.safetensors"), tmp_path / "audit")
    assert not (tmp_path / "audit").exists()
    with pytest.raises(UsageError, match="nothing to audit"):
        run(AuditConfig(), tmp_path / "audit")
    with pytest.raises(InputError):
        run(AuditConfig(world="nowhere.yaml"), tmp_path / "audit")


def test_an_output_over_the_checkpoint_is_refused(write_world: WriteWorld) -> None:
    folder = write_world()
    checkpoint = folder / FILES[TRANSFORMER]
    for out in (folder, checkpoint):
        with pytest.raises(OutputError):
            run(AuditConfig(checkpoint=checkpoint), out, AuditMode(overwrite=True))
    link = folder.with_name("link")
    link.symlink_to(folder)
    with pytest.raises(OutputError):
        run(AuditConfig(checkpoint=checkpoint), link, AuditMode(overwrite=True))
    assert checkpoint.is_file()


def test_a_finished_output_is_kept_and_a_changed_file_noticed(write_world: WriteWorld, tmp_path: Path) -> None:
    folder = write_world()
    config = AuditConfig(world=str(folder / "world.yaml"))
    out = tmp_path / "audit"
    first = run(config, out)
    with pytest.raises(OutputError, match="finished"):
        run(config, out)
    assert run(config, out, AuditMode(resume=True)).already_done
    os.utime(folder / FILES[TRANSFORMER], ns=(1, 1))
    with pytest.raises(UsageError, match="no longer the file"):
        run(config, out, AuditMode(resume=True))
    again = run(config, out, AuditMode(overwrite=True))
    assert again.audit["sources"] == first.audit["sources"]


def test_large_files_of_a_failed_audit_are_not_hashed(write_world: WriteWorld, tmp_path: Path) -> None:
    checkpoint = write_world() / FILES[TRANSFORMER]
    small_limit = {"checkpoint": checkpoint, "hash_limit_bytes": 1000}
    assert run(AuditConfig(**small_limit), tmp_path / "a").audit["files"][0]["sha256"] is None
    hashed = run(AuditConfig(**small_limit, hash_all=True), tmp_path / "b")
    assert len(hashed.audit["files"][0]["sha256"]) == 64


def test_a_ten_gigabyte_file_is_answered_from_its_header(tmp_path: Path) -> None:
    """Sparse: reading it whole would show in the bytes read by this process."""
    header: dict[str, object] = {}
    position = 0
    for tensor in (t for t in expected_tensors("stateplay-5b") if t.component == TRANSFORMER):
        size = 2
        for length in tensor.shape:
            size *= length
        header[tensor.name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header).encode()
    path = tmp_path / "step-4572.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + position)
    assert path.stat().st_size > 10e9
    read_before = _bytes_read()
    with pytest.raises(CheckError):
        invoke_checked(str(path), "--out", str(tmp_path / "audit"))
    assert _bytes_read() - read_before < 100e6
    audit = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert audit["preset"] == "stateplay-5b"
    assert audit["verdict"] == "failed"
    assert "all 30 coupling gates" in audit["reasons"][0]


def invoke_checked(*arguments: str) -> None:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None:
        raise result.exception


def _bytes_read() -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("no rchar in /proc/self/io")


@pytest.mark.slow
def test_written_by_the_model_audited_and_loaded(tmp_path: Path) -> None:
    """Fresh gates are 0 and fail; opened, the very same files pass and load with nothing left to chance."""
    import torch

    from stateplay_rl.worlds.load import load_world
    from stateplay_rl.worlds.native.initialise import initialise
    from stateplay_rl.worlds.native.presets import preset
    from stateplay_rl.worlds.native.text import (
        TEXT_PRESETS,
        TextEncoder,
        build_text_model,
        load_tokenizer,
        train_tokenizer,
    )
    from stateplay_rl.worlds.native.transformer import LatentStateTransformer
    from stateplay_rl.worlds.native.transition_tokenizer import TransitionTokenizer
    from stateplay_rl.worlds.native.vae import VAE_PRESETS, VideoVae
    from stateplay_rl.worlds.native.world import NativeModules
    from stateplay_rl.worlds.world_files import resolve_world
    from tests.worlds.files import write_world_files

    sizes = preset("arena")
    transformer = LatentStateTransformer(sizes.transformer, sizes.latent_state)
    tokenizer = TransitionTokenizer(sizes.tokenizer)
    initialise(transformer, 0)
    initialise(tokenizer, 1)
    rows = train_tokenizer(["the opponent walks forward"], tmp_path / "words.json")
    text_model = build_text_model(TEXT_PRESETS["arena"], rows)
    text = TextEncoder(TEXT_PRESETS["arena"], text_model, load_tokenizer(tmp_path / "words.json"))
    modules = NativeModules(transformer, tokenizer, VideoVae(VAE_PRESETS["arena"]), text)
    folder = tmp_path / "world"
    folder.mkdir()
    (folder / "world.yaml").write_text(world_text("trial"))
    config = AuditConfig(world=str(folder / "world.yaml"))

    write_world_files(folder, modules, tmp_path / "words.json", {"seed": "0"})
    closed = run(config, tmp_path / "closed")
    assert closed.audit["reasons"] == ["all 5 coupling gates are still 0: the state never reaches the picture"]
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if name.endswith("gate"):
                parameter.fill_(0.1)
    write_world_files(folder, modules, tmp_path / "words.json", {"seed": "0"})
    opened = run(config, tmp_path / "opened")
    assert opened.audit["trainable"], opened.audit["reasons"]
    world = load_world(resolve_world(str(folder / "world.yaml")))
    groups = world.set_mode("full")
    audited = {row["name"] for row in pq.read_table(opened.out / "provenance.parquet").to_pylist()}
    assert sum(len(group.names) for group in groups) == sum(
        t.component == TRANSFORMER for t in expected_tensors("arena")
    )
    assert audited >= {t.name for t in expected_tensors("arena")}


def test_the_packaged_arena_world_passes(tmp_path: Path) -> None:
    from stateplay_rl.worlds.world_files import WEIGHT_HASHES, arena_weights_folder

    if not (arena_weights_folder() / WEIGHT_HASHES).is_file():
        pytest.skip("the arena weights are not installed")
    code, text = invoke("--world", "arena", "--scan", "--out", str(tmp_path / "audit"))
    assert code == 0, text
    assert json.loads((tmp_path / "audit" / "audit.json").read_text())["trainable"]
