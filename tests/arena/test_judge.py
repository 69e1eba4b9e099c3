"""The referee as a judge of stored groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from stateplay_rl.arena.dataset import draw_conditions, render, simulate
from stateplay_rl.arena.judge import RefereeJudge
from stateplay_rl.arena.state import Glitches
from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.judges.base import checked
from stateplay_rl.stores.groups import GroupRecord, GroupStore, StoredGroup


def write_group(root: Path, prompt: str | None = None) -> StoredGroup:
    """A group of four: the engine, stuck HP, both displays stuck, noise."""
    condition = draw_conditions(1, 41, {"Macro_success": 1.0})[0]
    noise = np.random.default_rng(0).integers(0, 256, (33, 64, 96, 3)).astype(np.uint8)
    twins = (Glitches(), Glitches(hits_drain_nothing=True), Glitches(True, True))
    videos = [render(simulate(condition, glitches)) for glitches in twins] + [noise]
    record = GroupRecord(
        group_id="g0",
        condition_id="c0",
        batch=0,
        policy_sha256="0" * 64,
        world_sha256="0" * 64,
        sampler="euler",
        sampling_steps=5,
        seeds=(0, 1, 2, 3),
        prompt=condition.prompt if prompt is None else prompt,
        fps=20.0,
        frames=33,
        latent_frames=9,
        buttons=tuple(tuple(int(v) for v in row) for row in condition.held_buttons),
        action_bin_edges=tuple((4 * i, 4 * i + 4) for i in range(9)),
        mechanics_class="macro_success",
    )
    latents = [torch.zeros(1, 9, 1, 1, dtype=torch.bfloat16)] * 4
    return GroupStore(root).write(record, videos[0][0], latents, videos)


def test_a_group_is_scored_in_order_of_its_faults(tmp_path: Path) -> None:
    judge = RefereeJudge()
    group = write_group(tmp_path)
    verdict = judge.score_group(group)
    assert checked(verdict, 4) is not None
    assert verdict.status == "scored"
    exact, stuck_hp, stuck_both, noise = verdict.scores
    assert exact == 100.0
    assert 100.0 > stuck_hp > stuck_both >= 0.0
    assert noise == 0.0
    details = verdict.details["candidates"]
    assert [candidate["readable"] for candidate in details] == [True, True, True, False]
    assert judge.score_group(group) == verdict


def test_the_protocol_hash_names_the_numbers() -> None:
    assert len(RefereeJudge().protocol_sha256) == 64
    assert RefereeJudge().protocol_sha256 == RefereeJudge().protocol_sha256


def test_missing_and_damaged_files_are_no_scores(tmp_path: Path) -> None:
    group = write_group(tmp_path)
    path = group.candidate_video(2)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptionError):
        RefereeJudge().score_group(group)
    path.unlink()
    with pytest.raises(CorruptionError, match="missing"):
        RefereeJudge().score_group(group)
    path.write_bytes(data)
    group.first_frame_path().write_bytes(b"no picture")
    with pytest.raises(CorruptionError, match="not a readable picture"):
        RefereeJudge().score_group(group)


def test_a_group_of_another_world_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no arena strategy"):
        RefereeJudge().score_group(write_group(tmp_path, prompt="SF3 Game."))
