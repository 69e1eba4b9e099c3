"""The packaged student sees arena before any adapter has been trained."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from stateplay_rl.arena.judge import RefereeJudge
from stateplay_rl.config.judging import ProtocolConfig
from stateplay_rl.judges.protocol import JudgingProtocol
from stateplay_rl.reward_model.base_model import ARENA_STUDENT, load_base
from stateplay_rl.reward_model.inputs import GroupReader
from stateplay_rl.reward_model.language import Decoder
from stateplay_rl.reward_model.payload import build_from_group
from stateplay_rl.reward_model.reading import read_scores
from tests.reward_model.arena_groups import write_groups


def test_it_fits_into_the_repository() -> None:
    assert sum(file.stat().st_size for file in ARENA_STUDENT.iterdir()) <= 12_000_000


def test_it_tells_right_from_wrong_mechanics_on_unseen_conditions(tmp_path: Path) -> None:
    """Engine renderings, true and glitched: pairs that the referee holds clearly apart are ordered as it does."""
    base = load_base("arena", device=torch.device("cpu"), precision="float32", rule="auto")
    reader, protocol = GroupReader(base), JudgingProtocol(ProtocolConfig(frames=8))
    agreed, pairs, errors = 0, 0, []
    for group in write_groups(tmp_path, 6, seed=90_071):
        payload = build_from_group(group, protocol)
        with torch.no_grad():
            answer = read_scores(
                Decoder(base.model), base.chat, reader.form(payload.labels), reader.prompt(payload), "expected"
            )
        assert answer.scores is not None
        judged = RefereeJudge().score_group(group).scores
        expected = np.array([judged[k] for k in payload.order])
        found = np.array(answer.scores)
        errors.append(np.abs(found - expected).mean())
        for a, b in combinations(range(4), 2):
            if abs(expected[a] - expected[b]) > 5.0:
                pairs += 1
                agreed += (found[a] - found[b]) * (expected[a] - expected[b]) > 0
    assert pairs >= 15
    assert agreed / pairs > 0.85
    assert np.mean(errors) < 12.0
