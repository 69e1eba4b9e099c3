"""How many paid requests a segment can send, and what they can cost."""

from __future__ import annotations

from typing import Any

import pytest

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.judges.protocol import JudgingProtocol
from stateplay_rl.judges.request_size import most_of_request
from stateplay_rl.stages.train_nft.paid_requests import PaidGroups, cost_bound, paid_groups
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from tests.stages.train_nft.real_world import SHAPE, STAGE_A

PRICES = {"prices": {"gpt-6.1-sol": {"input_per_million": 2.0, "output_per_million": 10.0}}}


def paid(judge: dict[str, Any], plan: SegmentPlan = STAGE_A, heldout_groups: int = 0, **more: Any) -> list[PaidGroups]:
    config = TrainNftConfig(judge=judge, **more)
    return paid_groups(config, plan, SHAPE, audited=56 if more else 0, heldout_groups=heldout_groups)


def test_the_bound_is_two_of_the_largest_requests_a_group() -> None:
    """Input at 2 and 4,096 tokens of output at 10 per million; expected: one request and 600 tokens."""
    (one,) = paid({"name": "openai", "requests": PRICES}, heldout_groups=48)
    tokens = most_of_request(JudgingProtocol(one.judge.protocol), SHAPE).input_tokens
    assert (one.groups, one.most_requests) == (2048, 4096)
    assert one.most_cost == pytest.approx(4096 * (tokens * 2 + 4096 * 10) / 1e6)
    assert one.expected_cost == pytest.approx(2048 * (tokens * 2 + 600 * 10) / 1e6)
    words = cost_bound([one])
    assert words.startswith(f"at most {one.most_cost:.2f}, about {one.expected_cost:.2f}")
    assert "at most 4096 paid requests (2048 groups" in words


def test_the_judges_own_budget_is_a_bound_too() -> None:
    limits = {**PRICES, "max_requests": 100, "max_cost": 1.5}
    (one,) = paid({"name": "openai", "requests": limits})
    assert (one.most_requests, one.most_cost) == (100, 1.5)


def test_without_a_price_the_requests_are_counted() -> None:
    words = cost_bound(paid({"name": "openai"}))
    assert words.startswith("at most 4000 paid requests")
    assert "gpt-6.1-sol in requests.prices" in words


def test_an_auditor_and_the_parts_of_a_mix_are_paid_each() -> None:
    """A mix of two models asks both about every group; the referee in it costs nothing."""
    mix = {
        "name": "mix",
        "parts": {
            "one": {"name": "openai", "weight": 1},
            "two": {"name": "openai", "model": "other", "weight": 1},
            "game": {"name": "referee", "weight": 1},
        },
    }
    found = paid(mix)
    assert [(p.judge.model, p.groups) for p in found] == [("gpt-6.1-sol", 2000), ("other", 2000)]
    assert "at most 8000 paid requests" in cost_bound(found)
    audited = paid({"name": "plug_in:Student"}, SegmentPlan("c", 0, 72, 8000, 28), audits={"judge": {"name": "openai"}})
    assert [p.groups for p in audited] == [56]


def test_nothing_is_paid() -> None:
    assert cost_bound(paid({"name": "referee"})) == "0: no paid request"
    assert paid({"name": "openai"}, SegmentPlan("hand", 0, 0, 2, 2)) == []
