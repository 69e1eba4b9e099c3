"""Weight files of any layout: what is read, what is refused, and how much memory it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.worlds.native import weight_files
from stateplay_rl.worlds.native.shards import shards_of
from stateplay_rl.worlds.native.weight_files import list_tensors, stream


def write_shards(folder: Path, count: int = 3, index: bool = True) -> dict[str, torch.Tensor]:
    """`count` shards of two tensors each, and their index."""
    tensors = {f"blocks.{n}.w": torch.full((2, 3), float(n), dtype=torch.bfloat16) for n in range(2 * count)}
    names = list(tensors)
    weight_map = {}
    for number in range(count):
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        part = {name: tensors[name] for name in names[2 * number : 2 * number + 2]}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tensors


def read(path: Path) -> dict[str, torch.Tensor]:
    files = shards_of(path)
    names = [tensor.name for tensor in list_tensors(files)]
    return {n: v.clone() for file in files for n, v in stream(file, names_in(file, names))}


def names_in(file: Path, names: list[str]) -> list[str]:
    return [tensor.name for tensor in list_tensors([file]) if tensor.name in names]


@pytest.mark.parametrize("path", ["", "model.safetensors.index.json"])
def test_shards_by_folder_and_by_index(tmp_path: Path, path: str) -> None:
    tensors = write_shards(tmp_path)
    torch.save({"other": torch.zeros(1)}, tmp_path / "Wan2.2_VAE.pth")
    found = read(tmp_path / path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) for name, value in tensors.items())


def test_a_folder_without_an_index_means_its_safetensors(tmp_path: Path) -> None:
    tensors = write_shards(tmp_path, index=False)
    assert read(tmp_path).keys() == tensors.keys()


def test_nested_torch_files_come_out_with_dotted_names(tmp_path: Path) -> None:
    torch.save({"model": {"a.weight": torch.ones(2)}, "step": 7, "config": {"lr": 0.1}}, tmp_path / "t.pt")
    assert [(t.name, t.shape) for t in list_tensors([tmp_path / "t.pt"])] == [("model.a.weight", (2,))]
    assert torch.equal(dict(stream(tmp_path / "t.pt", ["model.a.weight"]))["model.a.weight"], torch.ones(2))


def test_a_file_is_opened_anew_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_files, "REOPEN_BYTES", 1)
    tensors = write_shards(tmp_path, count=1)
    torch.save(tensors, tmp_path / "all.pt")
    for file in (*shards_of(tmp_path), tmp_path / "all.pt"):
        assert [name for name, _ in stream(file, tensors)] == list(tensors)


def test_what_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not found"):
        shards_of(tmp_path / "nowhere.safetensors")
    with pytest.raises(InputError, match="no safetensors file"):
        shards_of(tmp_path)
    write_shards(tmp_path)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InputError, match=r"shard model-00002-of-00003\.safetensors is missing"):
        shards_of(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    with pytest.raises(InputError, match="leaves the folder"):
        shards_of(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[1]")
    with pytest.raises(InputError, match="no index of shards"):
        shards_of(tmp_path)
    (tmp_path / "other.safetensors.index.json").write_text("{}")
    with pytest.raises(InputError, match="2 indices"):
        shards_of(tmp_path)


def test_damaged_and_dangerous_files(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(8)}, tmp_path / "a.safetensors")
    save_file({"a": torch.zeros(8)}, tmp_path / "b.safetensors")
    with pytest.raises(InputError, match="earlier shard"):
        list_tensors([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    (tmp_path / "a.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-3])
    with pytest.raises(CorruptionError, match="audit-ckpt"):
        list_tensors([tmp_path / "a.safetensors"])
    torch.save({"a": Path("/")}, tmp_path / "code.pth")
    with pytest.raises(InputError, match="could run code"):
        list_tensors([tmp_path / "code.pth"])
    torch.save({"step": 3}, tmp_path / "empty.pth")
    with pytest.raises(InputError, match="not a dictionary of tensors"):
        list_tensors([tmp_path / "empty.pth"])


# Prints (peak resident bytes before, peak after loading, bytes of the model).
PROBE = """
import json, resource, sys
from pathlib import Path
import torch
from stateplay_rl.worlds.native import fill, keymap, presets, weight_files
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
weight_files.REOPEN_BYTES = 1 << 24
sizes = presets.TransformerSizes(16, 1536, 12, 6, 4096, 256, 512)
with torch.device("meta"):
    model = LatentStateTransformer(sizes, None, torch.bfloat16)
folder = Path(sys.argv[1])
names = keymap.to_training_names(model.state_dict()).state
shards = [dict(), dict(), dict()]
for number, (name, value) in enumerate(names.items()):
    shards[number % 3][name] = value.shape
for number, shard in enumerate(shards):
    header, position = {}, 0
    for name, shape in shard.items():
        end = position + 2 * shape.numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with open(folder / f"m-{number + 1:05d}-of-00003.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + position)
peak = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
stored = fill.stored_under_our_names([folder], keymap.any_to_ours)
fill.fill_exactly(model, stored, "shards", dtype_of=lambda *_: torch.bfloat16, device=torch.device("cpu"))
print(json.dumps([before, peak(), sum(p.nbytes for p in model.parameters())]))
"""


def test_the_host_holds_a_sharded_model_once(tmp_path: Path) -> None:
    """At full size the bound is the model plus 2 GB; here, with smaller windows, the model plus 60 MB."""
    done = subprocess.run([sys.executable, "-c", PROBE, str(tmp_path)], check=True, capture_output=True, text=True)
    before, after, model = json.loads(done.stdout)
    assert model > 400e6
    assert after - before < model + 60e6
