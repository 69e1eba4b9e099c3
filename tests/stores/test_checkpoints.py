"""Checkpoints: whole or absent, verified, the previous one offered when the latest is damaged."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from stateplay_rl.errors import CorruptionError, InputError, OutsideError
from stateplay_rl.stores import atomic
from stateplay_rl.stores.checkpoints import CheckpointPayload, CheckpointStore


def payload(step: int) -> CheckpointPayload:
    weights = {"b.weight": torch.full((3, 2), float(step)), "a": torch.arange(4.0)}
    return CheckpointPayload(
        live=weights,
        old={name: value * 0.5 for name, value in weights.items()},
        optimizer={"b.weight.exp_avg": torch.zeros(3, 2)},
        state={"batch": step, "offsets": {"metrics": 10 * step}},
    )


def test_round_trip(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    assert store.latest() is None
    store.save(8, payload(8))
    loaded = store.load()
    assert loaded.step == 8
    assert loaded.payload.state == {"batch": 8, "offsets": {"metrics": 80}}
    for part in ("live", "old", "optimizer"):
        expected, found = getattr(payload(8), part), getattr(loaded.payload, part)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert loaded.sha256 == atomic.sha256_file(loaded.folder / "state.json")
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-8\n"


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in range(1, 7):
        store.save(step, payload(step), is_best=step == 2)
    assert store.steps() == (2, 5, 6)
    assert store.best() == 2
    assert store.load(2).payload.state["batch"] == 2


@pytest.mark.parametrize("kill_at", range(4))
def test_a_kill_leaves_a_usable_checkpoint(tmp_path: Path, monkeypatch, kill_at: int) -> None:
    """The renames of a second save: state.json, the folder, `latest`."""
    store = CheckpointStore(tmp_path)
    store.save(1, payload(1))
    renames, real = iter(range(100)), os.replace

    def replace(source: str, target: str) -> None:
        if next(renames) == kill_at:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with suppress(KeyboardInterrupt):
            store.save(2, payload(2))
    step = store.latest()
    assert step == (2 if kill_at == 3 else 1)
    assert store.load().payload.state["batch"] == step
    store.save(2, payload(2))
    assert store.load().step == 2


def test_replacing_a_checkpoint_survives_a_kill_between_the_two_renames(tmp_path: Path, monkeypatch) -> None:
    """After a resume from step 1, step 2 is written again; killed while it is swapped, step 1 still loads."""
    store = CheckpointStore(tmp_path)
    store.save(1, payload(1))
    store.save(2, payload(2))
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(source).name.startswith(".step-2") and Path(target).name == "step-2":
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with suppress(KeyboardInterrupt):
            store.save(2, payload(3))
    assert store.steps() == (1,)
    assert store.load().step == 1


def test_the_folder_counts_when_the_pointer_was_never_written(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(3, payload(3))
    (tmp_path / "latest").unlink()
    assert store.load().step == 3


@pytest.mark.parametrize("name", ["live.safetensors", "old.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damage_is_named_and_the_previous_one_offered(tmp_path: Path, name: str, damage: str) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, payload(1))
    file = store.save(2, payload(2)) / name
    data = file.read_bytes()
    if damage == "remove":
        file.unlink()
    else:
        file.write_bytes(data[:-9] if damage == "truncate" else bytes([data[0] ^ 255]) + data[1:])
    with pytest.raises(CorruptionError, match=name.replace(".", r"\.")) as caught:
        store.load()
    assert "previous checkpoint, step 1" in caught.value.hint
    assert store.load(1).step == 1


def test_a_damaged_only_checkpoint_says_so(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    (store.save(1, payload(1)) / "state.json").write_text("{}")
    with pytest.raises(CorruptionError) as caught:
        store.load()
    assert "no earlier checkpoint" in caught.value.hint


def test_bad_pointers_missing_and_newer_checkpoints(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(InputError, match="no checkpoint"):
        store.load()
    folder = store.save(1, payload(1))
    with pytest.raises(InputError, match=r"no step-7 \(steps: 1\)"):
        store.load(7)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | {"version": 9}))
    with pytest.raises(InputError, match="version 9, this sprl reads 1"):
        store.load()
    (tmp_path / "latest").write_text("../../etc")
    with pytest.raises(CorruptionError, match="latest holds"):
        store.load()


def test_a_full_disk_keeps_the_earlier_checkpoint(tmp_path: Path, monkeypatch) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, payload(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutsideError):
            store.save(2, payload(2))
    assert store.steps() == (1,)
    assert store.load().step == 1


def test_a_full_disk_inside_safetensors_is_recognised(tmp_path: Path, monkeypatch) -> None:
    from safetensors import SafetensorError

    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OutsideError, match="no space left"):
        CheckpointStore(tmp_path).save(1, payload(1))


def test_nan_in_the_state_is_refused(tmp_path: Path) -> None:
    bad = CheckpointPayload({}, {}, {}, {"loss": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        CheckpointStore(tmp_path).save(1, bad)
    assert CheckpointStore(tmp_path).steps() == ()


def test_one_checkpoint_is_too_few() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        CheckpointStore(Path("x"), keep=1)
