"""What the objective looks up: cached for a batch, nothing longer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stateplay_rl.stages.candidates import RolloutPlan, policy_sha256, roll_out_group
from stateplay_rl.stages.train_nft.data import BatchData
from stateplay_rl.stages.train_nft.in_flight import InFlight
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.worlds.encoded import EncodedStore
from tests.stages.train_nft.helpers import Bench, write_tiny_conditions
from tests.worlds.tiny import SLOTS


def test_lookups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    world = bench.world
    conditions = write_tiny_conditions(tmp_path, passing=2, heldout=0, without_clip=[1])
    groups = GroupStore(tmp_path / "groups")
    plan = RolloutPlan(0, 0, bench.config.sampling, "live", policy_sha256(world, "live"), world.sha256)
    group_id = roll_out_group(world, conditions, conditions.by_id("c0"), plan, groups)
    data = BatchData(world, conditions, groups, EncodedStore(tmp_path / "encoded", world), InFlight(tmp_path))

    assert (data.has_clip("c0"), data.has_clip("c1")) == (True, False)
    assert not (tmp_path / "encoded").exists()
    assert data.real_of("c1") is None
    data.warm("c1")
    assert not (tmp_path / "encoded").exists()
    data.warm("c0")
    assert EncodedStore(tmp_path / "encoded", world).path("c0").is_file()
    clip = data.real_of("c0")
    assert clip is not None
    assert clip.latents.dtype == torch.float32
    assert clip.codes.shape == (SLOTS - 1, 4)
    assert data.real_of("c0") is clip

    batch = data.conditions_of(["c0", "c1", "c0"])
    assert batch.condition_ids == ("c0", "c1", "c0")
    assert torch.equal(batch.text_BLD[0], batch.text_BLD[2])
    assert not torch.equal(batch.first_latent_BC1HW[0], batch.first_latent_BC1HW[1])

    sample = Sample(group_id, "c0", 1, 0.5, SLOTS)
    latents = data.latents_of(sample)
    assert torch.equal(latents, groups.read(group_id).latents(1).float())
    assert data.latents_of(sample) is latents
    data.clear()
    assert data.latents_of(sample) is not latents

    asked: list[str] = []

    def elsewhere(name: str):
        asked.append(name)
        return groups.read(group_id)

    data.clear()
    data.read_from(elsewhere)
    data.latents_of(Sample("other", "c0", 0, 0.5, SLOTS))
    assert asked == ["other"]
