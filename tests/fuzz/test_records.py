"""Fuzzing: manifests, unfinished records, groups, logs, checkpoints, ledgers, YAML, HUD profiles, answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stateplay_rl.checks.directory import run_directory
from stateplay_rl.config.base import load_config
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import InputError, UsageError
from stateplay_rl.evaluation.profile import FOLDER, HudProfile
from stateplay_rl.judges.answers import read_answer
from stateplay_rl.judges.payload import Payload
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.sealed import file_problems, read_manifest
from stateplay_rl.stores.unfinished import read_unfinished
from stateplay_rl.worlds.native.shards import shards_of
from tests.checks.directories import write_chain, write_run
from tests.fuzz.damage import altered, damaged, deep, fuzzed, json_values, reads_or_says_why

DEEP = [deep("[", "]"), deep('{"a":', ""), deep("[")]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("chain")).parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), seal=False)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def test_manifests(chain: Path, tmp_path: Path) -> None:
    folder = tmp_path / "scores"
    shutil.copytree(chain / "scores", folder)
    sound = (folder / layout.MANIFEST).read_bytes()

    @fuzzed
    @given(data=damaged(sound) | altered(json.loads(sound)).map(as_json) | json_values.map(as_json))
    def check(data: bytes) -> None:
        (folder / layout.MANIFEST).write_bytes(data)
        manifest: Any = reads_or_says_why(lambda: read_manifest(folder))
        if manifest is not None:
            reads_or_says_why(lambda: list(file_problems(manifest)))
        reads_or_says_why(lambda: run_directory(folder))

    check()


def test_unfinished_records(run: Path, tmp_path: Path) -> None:
    sound = (run / layout.UNFINISHED).read_bytes()

    @fuzzed
    @given(data=damaged(sound) | altered(json.loads(sound)).map(as_json))
    def check(data: bytes) -> None:
        (tmp_path / layout.UNFINISHED).write_bytes(data)
        reads_or_says_why(lambda: read_unfinished(tmp_path))
        reads_or_says_why(lambda: read_manifest(tmp_path))

    check()


def test_groups(chain: Path, tmp_path: Path) -> None:
    shutil.copytree(chain / "groups" / "g-c0", tmp_path / "g-c0")
    file = tmp_path / "g-c0" / layout.GROUP
    sound = file.read_bytes()

    @fuzzed
    @given(data=damaged(sound) | altered(json.loads(sound)).map(as_json))
    def check(data: bytes) -> None:
        file.write_bytes(data)
        group: Any = reads_or_says_why(lambda: GroupStore(tmp_path).read("g-c0"))
        if group is not None:
            reads_or_says_why(group.verify)
            reads_or_says_why(lambda: group.latents(0))

    check()


def test_line_logs(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"

    @fuzzed
    @given(data=damaged(b'{"batch": 0, "loss": {"nft": 1.5}}\n{"batch": 1}\n'))
    def check(data: bytes) -> None:
        file.write_bytes(data)
        reads_or_says_why(lambda: LineLog(file).read())

    check()


def test_checkpoints(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / layout.CHECKPOINTS_FOLDER, tmp_path / "c")
    file = next((tmp_path / "c").glob(f"step-2/{layout.CHECKPOINT_STATE}"))
    sound = file.read_bytes()

    @fuzzed
    @given(data=damaged(sound) | altered(json.loads(sound)).map(as_json))
    def check(data: bytes) -> None:
        file.write_bytes(data)
        reads_or_says_why(lambda: CheckpointStore(tmp_path / "c").load(2))

    check()
    pointer = tmp_path / "c" / layout.LATEST

    @fuzzed
    @given(data=st.binary(max_size=40) | st.sampled_from([b"-1", b"2\n", b"1e9", b"\xd9\xa2", b"9" * 5000]))
    def check_pointer(data: bytes) -> None:
        pointer.write_bytes(data)
        reads_or_says_why(lambda: CheckpointStore(tmp_path / "c").latest())

    check_pointer()


def test_ledgers(run: Path, tmp_path: Path) -> None:
    file = tmp_path / layout.LEDGER
    sound = (run / layout.LEDGER).read_bytes()

    def read() -> None:
        with Ledger.open(file, read_only=True) as ledger:
            ledger.entries()
            ledger.digest()

    @fuzzed
    @given(data=damaged(sound) | damaged(sound[:100]).map(lambda head: head + sound[len(head) :]))
    def check(data: bytes) -> None:
        file.write_bytes(data)
        reads_or_says_why(read)

    check()


YAML = b"world: arena\nseed: 3\nsampling:\n  steps: 4\n  candidates: 2\njudge: {name: referee}\n"
SCALARS = [
    "!!int ''", "!!int x", "!!bool x", "!!timestamp x", "2001-13-45", "!!float x", "!!binary '\u00e9'",
    "!!python/object/apply:os.system [x]",
    "&a [*a]", "? [1]\n: 2", "? {}\n: 1", "<<: 1", "*nobody", "0x", "1:99:99", ".inf", "1e999", "'\\0'",
]  # fmt: skip


@fuzzed
@given(
    data=damaged(YAML)
    | st.sampled_from(SCALARS).map(lambda text: f"seed: {text}\n".encode())
    | st.sampled_from(SCALARS).map(str.encode)
    | altered(yaml.safe_load(YAML)).map(lambda value: json.dumps(value, ensure_ascii=True).encode())
)
def test_yaml(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(data)
    reads_or_says_why(lambda: load_config(TrainNftConfig, file))
    reads_or_says_why(lambda: load_config(WorldConfig, file))


@fuzzed
@given(text=st.text(max_size=12) | st.sampled_from(SCALARS))
def test_overrides(text: str) -> None:
    reads_or_says_why(lambda: load_config(TrainNftConfig, None, [f"seed={text}", f"experiment={text}"]))


def test_hud_profiles(tmp_path: Path) -> None:
    sound = (FOLDER / "sf3.yaml").read_bytes()
    file = tmp_path / "p.yaml"

    @fuzzed
    @given(
        data=damaged(sound)
        | altered(yaml.safe_load(sound)).map(lambda value: json.dumps(value, ensure_ascii=True, default=str).encode())
    )
    def check(data: bytes) -> None:
        file.write_bytes(data)
        reads_or_says_why(lambda: load_config(HudProfile, file))

    check()


def laughs(levels: int = 12) -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join([*lines, f"seed: *a{levels - 1}"]).encode()


FOUND = [laughs(), b"seed: &a [*a]", deep("[", "]", 5000), *[f"seed: {text}".encode() for text in SCALARS]]


@pytest.mark.parametrize("text", FOUND, ids=range(len(FOUND)))
def test_yaml_that_was_found(tmp_path: Path, text: bytes) -> None:
    """An `!!int` without digits was an IndexError, a 13th month a ValueError, eleven levels of aliases fill memory."""
    file = tmp_path / "c.yaml"
    file.write_bytes(text)
    with pytest.raises((InputError, UsageError)):
        load_config(TrainNftConfig, file)


@pytest.mark.parametrize("data", DEEP, ids=["closed", "objects", "open"])
def test_json_that_nests_without_end(chain: Path, tmp_path: Path, data: bytes) -> None:
    """Found by fuzzing: the interpreter's RecursionError is no ValueError."""
    shutil.copytree(chain / "groups" / "g-c0", tmp_path / "g-c0")
    for name in (layout.MANIFEST, layout.UNFINISHED, "index.safetensors.index.json", "log.jsonl"):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "g-c0" / layout.GROUP).write_bytes(data)
    (tmp_path / "log.jsonl").write_bytes(data + b"\n")
    readers = [
        lambda: read_manifest(tmp_path),
        lambda: read_unfinished(tmp_path),
        lambda: GroupStore(tmp_path).read("g-c0"),
        lambda: LineLog(tmp_path / "log.jsonl").read(),
        lambda: shards_of(tmp_path / "index.safetensors.index.json"),
    ]
    for reader in readers:
        with pytest.raises(InputError):
            reader()


WRONG_TYPES: list[tuple[str, Any]] = [
    ("version", 1e999), ("version", "1"),
    ("files", {"\0": {"size": 1, "sha256": "a"}}), ("files", {"": {"size": 1, "sha256": "a"}}),
    ("files", {"a": {"size": "1", "sha256": None}}),
    ("inputs", {"a": {"path": 3, "sha256": None, "schema_name": None}}),
    ("versions", []), ("extra", None), ("command", ["x"]), ("world_size", None), ("run_id", {}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG_TYPES)
def test_manifest_fields_of_another_type(chain: Path, tmp_path: Path, field: str, value: Any) -> None:
    """Found by fuzzing: a later reader of the field ended in a traceback."""
    shutil.copytree(chain / "scores", tmp_path / "s")
    file = tmp_path / "s" / layout.MANIFEST
    manifest = json.loads(file.read_bytes())
    (manifest["schema"] if field == "version" else manifest)[field] = value
    file.write_text(json.dumps(manifest))
    with pytest.raises(InputError):
        read_manifest(tmp_path / "s")


@pytest.mark.parametrize(("field", "value"), [("fps", "20"), ("prompt", 3), ("frames", None), ("seeds", ["a", "b"])])
def test_group_fields_of_another_type(chain: Path, tmp_path: Path, field: str, value: Any) -> None:
    shutil.copytree(chain / "groups" / "g-c0", tmp_path / "g-c0")
    file = tmp_path / "g-c0" / layout.GROUP
    file.write_text(json.dumps({**json.loads(file.read_bytes()), field: value}))
    with pytest.raises(InputError, match=field):
        GroupStore(tmp_path).read("g-c0")


ANSWER = {
    "model": "m",
    "choices": [{"message": {"content": '{"scores": {"A": 1, "B": 2}}'}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3},
}


@fuzzed
@given(text=damaged(as_json(ANSWER)).map(lambda b: b.decode("utf-8", "replace")) | altered(ANSWER).map(json.dumps))
def test_whole_answers(text: str) -> None:
    payload = Payload.__new__(Payload)
    object.__setattr__(payload, "labels", ("A", "B"))
    _, parsed, reason = read_answer(text, payload, "m")
    assert (parsed is None) == bool(reason)
    assert parsed is None or all(0 <= score <= 100 for score in parsed.scores.values())
