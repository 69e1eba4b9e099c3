"""Speeds: scaled to another card, replaced by a profile."""

from __future__ import annotations

import pytest

from stateplay_rl.errors import InputError
from stateplay_rl.stages.train_nft.speeds import H200, PARTS


def test_another_card_is_slower_in_every_part() -> None:
    l20 = H200.on("l20")
    assert all(getattr(l20, part) == 7 * getattr(H200, part) for part in PARTS)
    assert H200.on("h200").step == H200.step
    assert "7 times" in l20.sources["device"]
    with pytest.raises(InputError, match="'a100' is not known"):
        H200.on("a100")


def test_a_profile_replaces_what_it_measured_and_nothing_else() -> None:
    """Micro-step 0.7, 1.2 with anchors: the anchors add 0.5; the checkpointed step is the one that surely fits."""
    rows = {
        "forward": {"seconds": 0.21},
        "decode": {"seconds": 1.1},
        "encode": {"left_out": "out of time"},
        "micro-step": {"seconds": 0.7},
        "micro-step, anchors": {"seconds": 1.2},
        "micro-step, checkpointed": {"seconds": 0.9},
    }
    found = H200.measured({"machine": {"device": "NVIDIA H200"}, "rows": rows})
    assert (found.step, found.decode, found.sample, found.encode) == (0.21, 1.1, 0.9, H200.encode)
    assert found.anchors == pytest.approx(0.5)
    assert found.sources["step"] == "verify profile on NVIDIA H200"
    assert found.sources["encode"] == H200.sources["encode"]
