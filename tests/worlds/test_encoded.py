"""The `encoded/` store on the tiny world and a conditions directory with one clip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores.conditions import (
    ConditionRecord,
    ConditionStore,
    write_condition_files,
    write_conditions,
)
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.video import decode_mp4, encode_mp4
from stateplay_rl.worlds.encoded import EncodedStore
from tests.worlds.tiny import FRAMES, PROMPTS, SLOTS, tiny_inputs, tiny_world


class Config(FrozenConfig):
    seed: int = 0


def record(condition_id: str, clip: str | None, order: int) -> ConditionRecord:
    return ConditionRecord(
        condition_id=condition_id,
        clip=clip,
        prompt=PROMPTS[2],
        mechanics_class="normal",
        distribution="Normal",
        npc_category="Rush",
        strategy="",
        fps=20.0,
        frames=FRAMES,
        latent_frames=SLOTS,
        action_rows=9,
        action_bin_edges=((0, 3), (3, 6), (6, 9)),
        first_frame_sha256="0" * 64,
        actions_sha256="0" * 64,
        cluster_id=order,
        pool="pass",
        student_split="train",
        order=order,
        warnings=(),
    )


@pytest.fixture
def store(tmp_path: Path) -> ConditionStore:
    data = tmp_path / "data"
    data.mkdir()
    # 12 frames: the last three are not used.
    ramp = np.linspace(0, 255, 12 * 32 * 32 * 3).reshape(12, 32, 32, 3).astype(np.uint8)
    encode_mp4(data / "a.mp4", ramp, 20.0)
    records = [record("with-clip", "a.mp4", 0), record("without-clip", None, 1)]
    out = tmp_path / "conditions"
    inputs = tiny_inputs(1)[0]
    directory = OutputDirectory.open(
        out,
        schema="conditions",
        version=1,
        command="build-conditions",
        config=Config(),
        inputs={},
        resume=False,
        overwrite=False,
    )
    for item in records:
        held = inputs.held_actions_RK
        write_condition_files(directory, item.condition_id, inputs.first_frame_hwc, held.astype(np.int32), held, {})
    write_conditions(directory, records)
    directory.seal(extra={"data_root": "../data"})
    return ConditionStore.open(out)


def test_an_entry_holds_what_the_world_would_compute(store: ConditionStore, tmp_path: Path) -> None:
    world = tiny_world()
    entry = EncodedStore(tmp_path / "encoded", world).clip(store, store.by_id("with-clip"))
    clip = store.clip_path(store.by_id("with-clip"))
    assert clip is not None
    latents = world.encode_video(decode_mp4(clip)[:FRAMES])
    assert torch.equal(entry.latents, latents.to(torch.bfloat16))
    assert torch.equal(entry.codes, world.transition_codes(latents[None])[0])
    assert entry.first_latent.shape == (4, 1, 4, 4)
    # "NPC strategy: Rush." and the end mark
    assert entry.context.shape == (6, 16)


def test_an_entry_is_built_once_and_shared(
    store: ConditionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = EncodedStore(tmp_path / "encoded", tiny_world())
    entry = first.clip(store, store.by_id("with-clip"))
    again = EncodedStore(tmp_path / "encoded", tiny_world())
    monkeypatch.setattr("stateplay_rl.worlds.encoded.decode_mp4", None)
    assert torch.equal(again.clip(store, store.by_id("with-clip")).latents, entry.latents)
    # Another VAE has another folder, so it builds (and fails here, for want of a decoder).
    with pytest.raises(TypeError):
        EncodedStore(tmp_path / "encoded", tiny_world(seed=1)).clip(store, store.by_id("with-clip"))


def test_a_condition_without_a_clip_is_refused_by_name(store: ConditionStore, tmp_path: Path) -> None:
    encoded = EncodedStore(tmp_path / "encoded", tiny_world())
    with pytest.raises(InputError, match="without-clip has no clip"):
        encoded.clip(store, store.by_id("without-clip"))
    assert not encoded.path("without-clip").exists()


def test_damage_and_mixed_up_entries_are_found(store: ConditionStore, tmp_path: Path) -> None:
    encoded = EncodedStore(tmp_path / "encoded", tiny_world())
    item = store.by_id("with-clip")
    encoded.clip(store, item)
    path = encoded.path("with-clip")
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-3] ^= 1
    path.write_bytes(bytes(flipped))
    with pytest.raises(CorruptionError, match="recorded hash"):
        encoded.clip(store, item)
    path.write_bytes(good[:100])
    with pytest.raises(CorruptionError, match="damaged"):
        encoded.clip(store, item)
    path.rename(encoded.path("without-clip"))
    encoded.path("without-clip").write_bytes(good)
    with pytest.raises(CorruptionError, match="condition_id is with-clip"):
        encoded.clip(store, store.by_id("without-clip"))
    with pytest.raises(InputError, match="condition_id"):
        encoded.path("../outside")


def test_a_clip_that_is_too_short_is_refused(store: ConditionStore, tmp_path: Path) -> None:
    assert store.data_root is not None
    encode_mp4(store.data_root / "a.mp4", np.zeros((5, 32, 32, 3), np.uint8), 20.0)
    with pytest.raises(InputError, match="5 frames, 9 needed"):
        EncodedStore(tmp_path / "encoded", tiny_world()).clip(store, store.by_id("with-clip"))
