"""One condition to one group: what its content depends on, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stateplay_rl.config.rollout import SamplingConfig
from stateplay_rl.errors import CheckError, InputError
from stateplay_rl.stages import candidates
from stateplay_rl.stages.candidates import (
    RolloutPlan,
    condition_inputs,
    picture_spread,
    policy_sha256,
    reference_frames,
    roll_out_group,
)
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from stateplay_rl.worlds.native.world import NativeWorld
from tests.stages.train_nft.helpers import Bench, write_tiny_conditions
from tests.worlds.tiny import FRAMES, tiny_world

SAMPLING = SamplingConfig(candidates=3, steps=2)


@pytest.fixture(scope="module")
def conditions(tmp_path_factory: pytest.TempPathFactory) -> ConditionStore:
    return write_tiny_conditions(tmp_path_factory.mktemp("candidates"), passing=2, heldout=0, without_clip=[1])


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def plan_of(world: NativeWorld, **changes: object) -> RolloutPlan:
    plan = RolloutPlan(0, 0, SAMPLING, "live", policy_sha256(world, "live"), world.sha256)
    return replace(plan, **changes)  # type: ignore[arg-type]


def roll(root: Path, world: NativeWorld, conditions: ConditionStore, name: str, plan: RolloutPlan) -> StoredGroup:
    store = GroupStore(root)
    return store.read(roll_out_group(world, conditions, conditions.by_id(name), plan, store))


def test_a_group_and_its_record(bench: Bench, conditions: ConditionStore, tmp_path: Path) -> None:
    group = roll(tmp_path, bench.world, conditions, "c0", plan_of(bench.world))
    record = group.record
    assert (record.condition_id, record.candidates, record.sampling_steps, record.sampler) == ("c0", 3, 2, "euler")
    assert len(set(record.seeds)) == len(set(record.latents_sha256)) == 3
    assert (record.has_reference, record.frames) == (True, FRAMES)
    group.verify()
    latents = [group.latents(k) for k in range(3)]
    assert all(bool(torch.isfinite(x).all()) and x.dtype == torch.bfloat16 for x in latents)
    # Slot 0 is the condition's own.
    first = bench.world.encode_conditions([condition_inputs(conditions, conditions.by_id("c0"), bench.world)])
    expected = first.first_latent_BC1HW[0, :, 0].bfloat16()
    assert all(torch.equal(x[:, 0], expected) for x in latents)


def test_latents_may_be_kept_as_the_training_repository_keeps_them(
    bench: Bench, conditions: ConditionStore, tmp_path: Path
) -> None:
    plan = plan_of(bench.world)
    plain = roll(tmp_path, bench.world, conditions, "c0", plan)
    sampling = SAMPLING.model_copy(update={"latents": "bfloat16"})
    coarse = roll(tmp_path, bench.world, conditions, "c0", replace(plan, sampling=sampling))
    assert coarse.record.sampler == "euler-bf16"
    assert coarse.record.group_id != plain.record.group_id
    assert coarse.record.seeds != ()
    assert set(coarse.record.latents_sha256).isdisjoint(plain.record.latents_sha256)
    assert float((coarse.latents(0).float() - plain.latents(0).float()).abs().max()) < 0.1


def test_content_depends_on_seed_batch_condition_and_policy_only(
    bench: Bench, conditions: ConditionStore, tmp_path: Path
) -> None:
    plan = plan_of(bench.world)
    alone = roll(tmp_path / "alone", bench.world, conditions, "c0", plan)
    other_first = tmp_path / "after"
    roll(other_first, bench.world, conditions, "c1", plan)
    torch.manual_seed(99)
    assert roll(other_first, bench.world, conditions, "c0", plan).files == alone.files
    assert roll(tmp_path / "again", tiny_world_like(bench), conditions, "c0", plan).files == alone.files
    for changes in ({"seed": 1}, {"batch": 1}):
        changed = roll(tmp_path / "changed", bench.world, conditions, "c0", replace(plan, **changes))
        assert changed.record.group_id != alone.record.group_id
        assert set(changed.record.latents_sha256).isdisjoint(alone.record.latents_sha256)


def tiny_world_like(bench: Bench) -> NativeWorld:
    world = tiny_world()
    world.set_mode("transition")
    return world


def test_more_candidates_keep_the_first_ones(bench: Bench, conditions: ConditionStore, tmp_path: Path) -> None:
    few = roll(tmp_path, bench.world, conditions, "c0", plan_of(bench.world))
    sampling = SAMPLING.model_copy(update={"candidates": 4})
    many = roll(tmp_path, bench.world, conditions, "c0", plan_of(bench.world, sampling=sampling))
    assert many.record.seeds[:3] == few.record.seeds
    assert many.record.latents_sha256[:3] == few.record.latents_sha256


def test_candidates_per_call_is_a_matter_of_speed(bench: Bench, conditions: ConditionStore, tmp_path: Path) -> None:
    found = []
    for size in (1, 2, 3):
        sampling = SAMPLING.model_copy(update={"candidates_per_call": size})
        group = roll(tmp_path, bench.world, conditions, "c0", plan_of(bench.world, sampling=sampling))
        found.append(torch.stack([group.latents(k).float() for k in range(3)]))
    for other in found[1:]:
        assert float((other - found[0]).abs().max()) < 0.05


def test_a_finished_group_is_kept_and_a_half_one_replaced(
    bench: Bench, conditions: ConditionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(bench.world)
    first = roll(tmp_path, bench.world, conditions, "c0", plan)
    (first.folder / "group.json").unlink()
    (first.folder / "candidate_0.mp4").write_bytes(b"half")
    assert roll(tmp_path, bench.world, conditions, "c0", plan).files == first.files

    def never(*arguments: object) -> None:
        raise AssertionError("sampled again")

    monkeypatch.setattr(bench.world, "encode_conditions", never)
    assert roll(tmp_path, bench.world, conditions, "c0", plan).sha256 == first.sha256


def test_a_condition_without_a_clip_has_no_reference(bench: Bench, conditions: ConditionStore, tmp_path: Path) -> None:
    group = roll(tmp_path, bench.world, conditions, "c1", plan_of(bench.world))
    assert group.record.has_reference is False
    assert group.reference_video() is None


def test_the_reference_is_cut_to_the_used_frames(conditions: ConditionStore) -> None:
    frames = reference_frames(conditions, conditions.by_id("c0"))
    assert frames is not None
    assert len(frames) == FRAMES
    assert reference_frames(conditions, conditions.by_id("c1")) is None


def test_a_first_frame_of_another_size_is_refused(
    bench: Bench, conditions: ConditionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "first_frame", lambda name: np.zeros((16, 24, 3), np.uint8))
    with pytest.raises(InputError, match="first frame is 24x16, world tiny wants 32x32") as caught:
        condition_inputs(conditions, conditions.by_id("c0"), bench.world)
    assert "build-conditions" in caught.value.hint


def test_a_diverged_policy_is_named(
    bench: Bench, conditions: ConditionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(bench.world)
    monkeypatch.setattr(candidates, "_sample", lambda *_: torch.full((3, 4, 3, 4, 4), float("nan")))
    with pytest.raises(CheckError, match=r"sampled NaN or infinity for condition c0"):
        roll(tmp_path, bench.world, conditions, "c0", plan)
    assert GroupStore(tmp_path).finished() == ()


def test_a_policy_is_named_by_its_weights() -> None:
    first, second = Bench(), Bench()
    assert policy_sha256(first.world, "live") == policy_sha256(second.world, "reference")
    second.nudge("live")
    assert policy_sha256(first.world, "live") != policy_sha256(second.world, "live")
    assert policy_sha256(first.world, "old") == policy_sha256(second.world, "old")


def test_diversity_by_hand() -> None:
    """Two candidates of 10 and 30 everywhere: deviation 10; alike ones: 0."""
    low, high = np.full((2, 4, 4, 3), 10, np.uint8), np.full((2, 4, 4, 3), 30, np.uint8)
    assert picture_spread([low, high]) == 10.0
    assert picture_spread([low, low, low]) == 0.0


def test_every_sampler_names_itself_and_makes_other_candidates(
    bench: Bench, conditions: ConditionStore, tmp_path: Path
) -> None:
    plan = plan_of(bench.world, sampling=SAMPLING.model_copy(update={"steps": 8}))
    changes = [
        {}, {"solver": "ab2"}, {"solver": "dpm2m"}, {"solver": "unipc2"}, {"cache": "taylor"}, {"cache": "firstblock"}
    ]  # fmt: skip
    groups = []
    for change in changes:
        sampling = plan.sampling.model_copy(update=change)
        groups.append(roll(tmp_path, bench.world, conditions, "c0", replace(plan, sampling=sampling)))
    names = ["euler", "ab2", "dpm2m", "unipc2", "euler+taylor3", "euler+firstblock0.1"]
    assert [group.record.sampler for group in groups] == names
    assert len({group.record.latents_sha256 for group in groups}) == len({g.record.group_id for g in groups}) == 6


def test_ids_of_older_groups_stay(bench: Bench) -> None:
    """Settings that came later are no part of an id while they are at their defaults, or not in use."""
    plain = plan_of(bench.world)
    unused = SAMPLING.model_copy(update={"cache_every": 7, "cache_threshold": 0.9})
    assert replace(plain, sampling=unused).group_id("c0") == plain.group_id("c0")
    settings = {"candidates": 3, "steps": 2, "shift": 5.0, "candidates_per_call": 1}
    assert candidates._sampling_identity(SAMPLING) == settings
    taylor = SAMPLING.model_copy(update={"cache": "taylor"})
    assert candidates._sampling_identity(taylor) == {**settings, "cache": "taylor", "cache_every": 3}
