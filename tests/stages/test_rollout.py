"""`rollout` on the tiny world: what is sampled, sealed, resumed and refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stateplay_rl.config.rollout import RolloutConfig, SamplingConfig
from stateplay_rl.errors import InputError, OutputError, OutsideError, UsageError
from stateplay_rl.stages import rollout as stage
from stateplay_rl.stages.rollout import RolloutInputs, RolloutSummary
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore, read_groups_parquet
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.worlds.native.weights import write_safetensors
from tests.stages.train_nft.helpers import Bench, write_tiny_conditions
from tests.worlds.tiny import tiny_world

SAMPLING = SamplingConfig(candidates=2, steps=2)


@pytest.fixture(scope="module")
def conditions(tmp_path_factory: pytest.TempPathFactory) -> ConditionStore:
    return write_tiny_conditions(tmp_path_factory.mktemp("rollout"), passing=4, heldout=2, without_clip=[1])


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(files=(), preset="arena", frame_height=32, frame_width=48)
    monkeypatch.setattr(stage, "resolve_world", lambda name: fake)
    monkeypatch.setattr(stage, "all_files", lambda files: ())
    monkeypatch.setattr(stage, "load_world", lambda config: tiny_world())
    # Compares with the sizes of the (here faked) config; test_a_policy_of_another_world has a real one.
    monkeypatch.setattr(stage, "require_policy", lambda config, policy: None)


def go(conditions: ConditionStore, out: Path, resume: bool = False, **changes: Any) -> RolloutSummary:
    config = RolloutConfig(**{"sampling": SAMPLING, **changes})
    return stage.run(config, RolloutInputs(conditions.root, resume=resume), out)


def conditions_in(out: Path) -> list[str]:
    return sorted(row.condition_id for row in read_groups_parquet(out / layout.GROUPS))


def test_a_sealed_directory(conditions: ConditionStore, tmp_path: Path) -> None:
    summary = go(conditions, tmp_path / "groups")
    assert (summary.groups, summary.candidates, summary.without_reference) == (4, 8, 1)
    manifest = read_manifest(tmp_path / "groups", schema="groups", verify_files=True)
    assert manifest.inputs["conditions"].sha256 == conditions.manifest_sha256
    assert manifest.extra["policy_sha256"] == summary.policy_sha256
    assert manifest.seeds == {"run": 0, "batch": 0}
    assert conditions_in(tmp_path / "groups") == ["c0", "c1", "c2", "c3"]
    again = go(conditions, tmp_path / "groups", resume=True)
    assert again == RolloutSummary(**{**vars(summary), "already_done": True})


def test_which_conditions(conditions: ConditionStore, tmp_path: Path) -> None:
    go(conditions, tmp_path / "a", skip=1, limit=2)
    assert conditions_in(tmp_path / "a") == ["c1", "c2"]
    go(conditions, tmp_path / "b", pool="heldout")
    assert conditions_in(tmp_path / "b") == ["c4", "c5"]
    with pytest.raises(InputError, match="after skipping 4"):
        go(conditions, tmp_path / "c", skip=4)
    assert not (tmp_path / "c").exists()


def test_a_stopped_rollout_goes_on(conditions: ConditionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(conditions, tmp_path / "whole")
    real, calls = stage.draw_group, iter(range(99))

    def stopping(*arguments: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(stage, "draw_group", stopping)
        with pytest.raises(KeyboardInterrupt):
            go(conditions, tmp_path / "half")
    assert len(GroupStore(tmp_path / "half").finished()) == 2
    with pytest.raises(OutputError, match="unfinished"):
        go(conditions, tmp_path / "half")
    with pytest.raises(UsageError, match="seed: was 0, now 3"):
        go(conditions, tmp_path / "half", resume=True, seed=3)
    go(conditions, tmp_path / "half", resume=True)
    files = [read_manifest(tmp_path / name, verify_files=True).files for name in ("whole", "half")]
    assert files[0] == files[1]


def test_an_exported_policy_keeps_its_name(conditions: ConditionStore, tmp_path: Path) -> None:
    bench = Bench()
    bench.nudge("live", 0.2)
    policy = tmp_path / "policy.safetensors"
    write_safetensors(policy, bench.world.export_policy("live"), {})
    base = go(conditions, tmp_path / "base", limit=1)
    moved = go(conditions, tmp_path / "moved", limit=1, policy=policy)
    assert moved.policy_sha256 == stage.policy_sha256(bench.world, "live")
    assert moved.policy_sha256 != base.policy_sha256
    manifest = read_manifest(tmp_path / "moved")
    assert set(manifest.inputs) == {"conditions", "policy"}
    stored = [GroupStore(tmp_path / name) for name in ("base", "moved")]
    hashes = [store.read(store.finished()[0]).record.latents_sha256 for store in stored]
    assert hashes[0] != hashes[1]


def test_a_policy_of_another_world_leaves_nothing_behind(
    conditions: ConditionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and shapes are compared with the world's own before the output is opened or a model is loaded."""
    from stateplay_rl.worlds.load import require_policy
    from stateplay_rl.worlds.world_files import arena_world

    monkeypatch.setattr(stage, "resolve_world", lambda name: arena_world())
    monkeypatch.setattr(stage, "require_policy", require_policy)
    monkeypatch.setattr(stage, "load_world", lambda config: pytest.fail("a model was loaded"))
    policy = tmp_path / "policy.safetensors"
    for weights in ({"latent_state_rollout.transition.delta.bias": torch.zeros(5)}, {"nonsense": torch.zeros(1)}):
        write_safetensors(policy, weights, {})
        with pytest.raises(InputError, match="do not fit this world"):
            go(conditions, tmp_path / "groups", policy=policy)
        assert not (tmp_path / "groups").exists()


def test_a_rollout_that_will_not_fit_is_refused_before_it_begins(
    conditions: ConditionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    monkeypatch.setattr(stage, "load_world", lambda config: pytest.fail("nothing is loaded"))
    with pytest.raises(OutsideError, match=r"\d{4,} bytes needed, 1 free"):
        go(conditions, tmp_path / "groups")


def test_the_output_may_not_lie_in_an_input(conditions: ConditionStore) -> None:
    with pytest.raises(OutputError, match="conditions"):
        go(conditions, conditions.root / "groups")
