"""Clusters: what joins, what does not, tightening, and agreement with a plain pairwise reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stateplay_rl.conditions import clusters as module
from stateplay_rl.conditions.clusters import Evidence, gather_evidence, given_clusters, infer_clusters
from stateplay_rl.config.conditions import ClusterRules, ClusterThresholds
from stateplay_rl.errors import CheckError
from tests.conditions.clip_factory import pictures

STATES = (50.0, 100.0, 100.0, 20.0, 20.0)


def clip(picture: int, states: tuple[float | None, ...] = STATES, buttons: int = 0, noise: int = 0) -> Evidence:
    """Evidence of a clip with the picture, states and buttons of these numbers."""
    frame = pictures(picture, 1)[0]
    if noise:
        frame = np.clip(frame.astype(int) + noise, 0, 255).astype(np.uint8)
    raw = (np.random.default_rng(buttons).random((20, 11)) < 0.4).astype(np.float32)
    return gather_evidence(frame, raw, 4, states)


def labels(evidence: list[Evidence], **rules: object) -> list[int]:
    return list(infer_clusters(evidence, ClusterRules(**rules)).labels)  # type: ignore[arg-type]


def test_same_picture_and_adjacent_states_join() -> None:
    near = (STATES[0] + 5, *STATES[1:])
    assert labels([clip(0), clip(0, near, buttons=1), clip(1)]) == [0, 0, 1]


def test_same_picture_and_equal_buttons_join_whatever_the_states() -> None:
    far = (5.0, 10.0, 10.0, 90.0, 90.0)
    assert labels([clip(0), clip(0, far)]) == [0, 0]
    assert labels([clip(0), clip(0, far, buttons=1)]) == [0, 1]


def test_other_pictures_never_join_whatever_the_rest() -> None:
    assert labels([clip(0), clip(1), clip(2)]) == [0, 1, 2]


def test_slight_noise_still_joins_and_joining_is_transitive() -> None:
    """Timers 50, 57, 64: the ends are 14 apart and meet through the middle."""
    chain = [clip(0, (t, *STATES[1:]), buttons=i, noise=i) for i, t in enumerate((50.0, 57.0, 64.0))]
    assert labels(chain) == [0, 0, 0]
    assert labels([chain[0], chain[2]]) == [0, 1]


def test_unknown_states_do_not_separate() -> None:
    assert labels([clip(0), clip(0, (None,) * 5, buttons=1)]) == [0, 0]


def test_numbers_follow_first_appearance() -> None:
    assert labels([clip(3), clip(1), clip(3), clip(2), clip(1)]) == [0, 1, 0, 2, 1]


def test_tables_of_different_lengths_are_compared() -> None:
    short = gather_evidence(pictures(0, 1)[0], np.ones((4, 11), np.float32), 4, (0.0,) * 5)
    assert labels([short, clip(0)]) == [0, 1]


def test_large_cluster_tightens_the_thresholds() -> None:
    """15 clips a timer step of 4 apart: one cluster at 8, and none at 3."""
    chain = [clip(0, (4.0 * i, *STATES[1:]), buttons=i) for i in range(15)]
    result = infer_clusters(chain, ClusterRules())
    assert result.limit == 10
    assert result.level == 2
    assert result.largest_by_level == (15, 15, 1)
    assert result.sizes().max() == 1


def test_too_large_at_every_threshold_is_a_failed_check() -> None:
    same = [clip(0, buttons=i) for i in range(12)]
    with pytest.raises(CheckError, match="12 of 12 clips look like one episode") as caught:
        infer_clusters(same, ClusterRules())
    assert "--episodes" in caught.value.hint
    assert infer_clusters(same[:10], ClusterRules()).sizes().tolist() == [10]


def test_five_per_cent_of_a_large_set_is_the_limit() -> None:
    far_apart = [clip(i) for i in range(300)]
    assert infer_clusters(far_apart, ClusterRules()).limit == 15


def test_given_episodes() -> None:
    result = given_clusters(["b", "a", "b"], ClusterRules())
    assert result.labels == (0, 1, 0)
    assert result.level is None


def reference_labels(evidence: list[Evidence], limits: ClusterThresholds) -> list[int]:
    """The definition, pair by pair."""
    bits = [np.unpackbits(np.frombuffer(bytes.fromhex(e.hash_hex), np.uint8)).astype(int) for e in evidence]
    thumbs = [np.frombuffer(bytes.fromhex(e.thumbnail_hex), np.uint8).astype(float) for e in evidence]
    buttons = [np.unpackbits(np.frombuffer(bytes.fromhex(e.buttons_hex), np.uint8)).astype(int) for e in evidence]
    label = list(range(len(evidence)))
    for i in range(len(evidence)):
        for j in range(i):
            look = np.abs(bits[i] - bits[j]).sum() <= limits.hash_bits
            look &= np.sqrt(((thumbs[i] - thumbs[j]) ** 2).mean()) <= limits.pixel_levels
            states = np.abs(np.subtract(evidence[i].states, evidence[j].states))
            near = states[0] <= limits.timer and states[1:].max() <= limits.bars
            equal = np.abs(buttons[i] - buttons[j]).sum() <= limits.action_share * evidence[i].windows * 11
            if look and (near or equal):
                old, new = label[i], label[j]
                label = [new if value == old else value for value in label]
    order: dict[int, int] = {}
    return [order.setdefault(value, len(order)) for value in label]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_blocks_agree_with_the_definition(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    evidence = [
        clip(
            int(random.integers(4)),
            tuple(float(v) for v in random.integers(0, 60, 5)),
            int(random.integers(8)),
            int(random.integers(6)),
        )
        for _ in range(80)
    ]
    limits = ClusterThresholds(hash_bits=8, pixel_levels=2.0, timer=6, bars=25, action_share=0.02)
    rules = ClusterRules(levels=(limits,), largest_always_allowed=80)
    expected = reference_labels(evidence, limits)
    assert list(infer_clusters(evidence, rules).labels) == expected
    assert 1 < max(expected) + 1 < 80
    # Small blocks: the same clusters through many partial unions.
    monkeypatch.setattr(module, "_BLOCK", 7)
    monkeypatch.setattr(module, "_PAIRS_AT_ONCE", 5)
    assert list(infer_clusters(evidence, rules).labels) == expected


def test_evidence_of_equal_pictures_is_equal() -> None:
    assert clip(4) == clip(4)
    assert clip(4) != replace(clip(4), hash_hex=clip(5).hash_hex)
