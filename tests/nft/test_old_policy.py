"""The old policy follows slowly, in float32, and never shares memory with live."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stateplay_rl.nft.old_policy import DECAY_TYPES, Decay, update_, weight_on_old

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "old_policy_decay.json").read_text())


@pytest.mark.parametrize("decay_type", [1, 2])
def test_golden_weights_exactly(decay_type):
    for steps, weight in GOLDEN[f"decay_type_{decay_type}"].items():
        assert weight_on_old(int(steps), DECAY_TYPES[decay_type]) == weight


def test_slope_and_maximum_are_settings():
    assert weight_on_old(10, Decay(slope=0.01, maximum=0.9)) == pytest.approx(0.1)
    assert weight_on_old(10_000, Decay(slope=0.01, maximum=0.9)) == 0.9


def test_hand_values():
    """eta weighs old: 0.25 * 8 + 0.75 * 4 = 5."""
    old, live = {"w": torch.tensor([8.0])}, {"w": torch.tensor([4.0])}
    update_(old, live, 0.25)
    assert old["w"].item() == 5.0
    assert live["w"].item() == 4.0


def test_after_no_step_old_becomes_live_exactly():
    old, live = {"w": torch.tensor([float("nan"), 1.0])}, {"w": torch.tensor([0.1, 0.2])}
    update_(old, live, weight_on_old(0))
    assert torch.equal(old["w"], live["w"])


def test_small_changes_survive_in_float32():
    """In bfloat16 1 + 1e-3/2 rounds back to 1; in float32 the average moves."""
    old = {"w": torch.ones(1)}
    update_(old, {"w": torch.ones(1) + 1e-3}, 0.5)
    assert old["w"].item() == pytest.approx(1.0005, abs=1e-7)
    assert old["w"].item() != 1.0


def test_what_would_go_wrong_silently_is_refused():
    w = torch.zeros(2)
    with pytest.raises(ValueError, match="same tensor"):
        update_({"w": w}, {"w": w}, 0.5)
    with pytest.raises(ValueError, match="different parameters"):
        update_({"w": w}, {"v": w}, 0.5)
    with pytest.raises(ValueError, match="float32"):
        update_({"w": w.bfloat16()}, {"w": w}, 0.5)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        update_({"w": w}, {"w": w.clone()}, 1.5)
    with pytest.raises(ValueError, match="old"):
        update_({"w": w}, {"w": torch.zeros(3)}, 0.5)
    with pytest.raises(ValueError, match="negative"):
        weight_on_old(-1)
