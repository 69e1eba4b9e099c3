"""What a path holds, recognised by content; shards; nothing runs code from a file."""

from __future__ import annotations

import json
import pickle
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save, save_file

from stateplay_rl.checks.audit.files import file_facts, open_checkpoint
from stateplay_rl.errors import InputError

WEIGHTS = {"a.weight": np.ones((2, 3), np.float32), "b": np.zeros(2, np.float32)}


@pytest.mark.parametrize(
    "content, kind, word",
    [
        (b"", "empty", "0 bytes"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 10199\n",
            "lfs_pointer",
            "10199 bytes",
        ),
        (b"<!DOCTYPE html><html><body>404</body></html>", "html", "HTML page"),
        (b"\xef\xbb\xbf\n <HTML lang=en>", "html", "HTML page"),
        (b"\0" * 64, "unknown", "zeros only"),
        (b"not a weight file at all", "unknown", "neither safetensors"),
        ((2**63).to_bytes(8, "little") + b"\0" * 8, "unknown", str(2**63)),
        ((2**63).to_bytes(8, "little"), "unknown", str(2**63)),
        (b"PK\x03\x04 and nothing else", "torch_pickle", "damaged"),
    ],
)
def test_files_that_hold_no_weights(tmp_path: Path, content: bytes, kind: str, word: str) -> None:
    path = tmp_path / "step.safetensors"
    path.write_bytes(content)
    facts = file_facts(path)
    assert facts.kind == kind
    assert facts.state != "sound"
    assert any(word in problem for problem in facts.problems)
    assert facts.tensors == ()


def test_the_suffix_does_not_decide(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(save(WEIGHTS))
    assert (file_facts(path).kind, file_facts(path).state) == ("safetensors", "sound")


@pytest.mark.parametrize("new_format", [True, False])
def test_torch_files_are_listed_without_loading(tmp_path: Path, new_format: bool) -> None:
    path = tmp_path / "weights.pt"
    state = {
        "module": {"x": torch.ones(3, 4, dtype=torch.bfloat16), "n": torch.ones(2, dtype=torch.int64)},
        "step": 3,
    }
    torch.save(state, path, _use_new_zipfile_serialization=new_format)
    facts = file_facts(path)
    assert facts.state == "sound"
    assert {t.name: (t.dtype, t.shape) for t in facts.tensors} == {
        "module.x": ("BF16", (3, 4)),
        "module.n": ("I64", (2,)),
    }


class _Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (subprocess.call, (["touch", str(self.marker)],))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path: Path, form: str) -> None:
    marker, path = tmp_path / "ran", tmp_path / "evil.pt"
    if form == "torch":
        torch.save({"x": _Evil(marker)}, path)
    else:
        path.write_bytes(pickle.dumps(_Evil(marker)))
    facts = file_facts(path)
    assert facts.state == "refused"
    assert "needs code to open" in facts.problems[0]
    assert not marker.exists()


def test_a_truncated_torch_file_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"x": torch.ones(100)}, path)
    path.write_bytes(path.read_bytes()[:-200])
    assert file_facts(path).state in ("truncated", "refused")


def test_a_zip_that_is_no_torch_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert file_facts(path).state != "sound"


def test_facts_name_the_real_file(tmp_path: Path) -> None:
    real, link = tmp_path / "real.safetensors", tmp_path / "link.safetensors"
    save_file(WEIGHTS, real)
    link.symlink_to(real)
    facts = file_facts(link)
    assert facts.realpath == real.resolve()
    assert (facts.size, facts.mtime_ns) == (real.stat().st_size, real.stat().st_mtime_ns)
    assert facts.modified_utc.endswith("+00:00")


def test_missing_paths_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not found"):
        open_checkpoint(tmp_path / "nowhere.safetensors")
    with pytest.raises(InputError, match="no weight file"):
        open_checkpoint(tmp_path)


def _shards(folder: Path, names: tuple[str, ...] = ("a.weight", "b")) -> Path:
    weight_map = {}
    for number, name in enumerate(names, start=1):
        file = f"model-{number:05d}-of-{len(names):05d}.safetensors"
        save_file({name: WEIGHTS[name]}, folder / file)
        weight_map[name] = file
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def test_shards_with_an_index(tmp_path: Path) -> None:
    index = _shards(tmp_path)
    for path in (index, tmp_path):
        found = open_checkpoint(path)
        assert found.layout == "sharded"
        assert {t.name for t in found.tensors} == set(WEIGHTS)
        assert found.all_problems == ()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = _shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    for path in (index, tmp_path):
        assert any("model-00002-of-00002" in text and "missing" in text for text in open_checkpoint(path).all_problems)


def test_one_shard_given_alone_says_what_is_lacking(tmp_path: Path) -> None:
    _shards(tmp_path)
    found = open_checkpoint(tmp_path / "model-00001-of-00002.safetensors")
    assert "1 of 2 shards not given: model-00002-of-00002.safetensors" in found.problems[0]


def test_shards_without_index_in_a_folder(tmp_path: Path) -> None:
    _shards(tmp_path).unlink()
    assert open_checkpoint(tmp_path).all_problems == ()
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    assert "1 of 2 shards not given" in open_checkpoint(tmp_path).all_problems[0]


def test_an_index_that_disagrees_with_its_shards(tmp_path: Path) -> None:
    index = _shards(tmp_path)
    content = json.loads(index.read_text())
    content["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    assert "1 tensors of the index are not in it" in open_checkpoint(index).problems[0]


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..\\x.safetensors"])
def test_an_index_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    index = tmp_path / "m.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    found = open_checkpoint(index)
    assert "refused" in found.problems[0]
    assert found.tensors == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_a_broken_index_is_a_finding(tmp_path: Path, text: str) -> None:
    index = tmp_path / "m.index.json"
    index.write_text(text)
    assert open_checkpoint(index).all_problems
