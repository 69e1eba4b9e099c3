"""Budgets: held before a request leaves, settled after."""

from __future__ import annotations

import pytest

from stateplay_rl.config.judging import PriceConfig, RequestsConfig
from stateplay_rl.errors import EXIT_OUTSIDE
from stateplay_rl.judges.budget import Budget, BudgetReachedError, price_of


def test_requests_are_counted_before_they_leave() -> None:
    budget = Budget(RequestsConfig(max_requests=2))
    first = budget.reserve(None)
    budget.reserve(None)
    with pytest.raises(BudgetReachedError, match="2 requests") as caught:
        budget.reserve(None)
    assert caught.value.exit_code == EXIT_OUTSIDE
    budget.settle(first, 0.0, billed=False)
    budget.reserve(None)


def test_costs_are_held_at_their_most_and_settled_at_their_truth() -> None:
    budget = Budget(RequestsConfig(max_cost=1.0))
    held = budget.reserve(0.6)
    with pytest.raises(BudgetReachedError):
        budget.reserve(0.6)
    budget.settle(held, 0.1, billed=True)
    second = budget.reserve(0.6)
    budget.settle(second, None, billed=True)
    assert budget.cost == pytest.approx(0.7)
    with pytest.raises(BudgetReachedError):
        budget.reserve(0.31)


def test_no_limit_no_stop() -> None:
    budget = Budget(RequestsConfig())
    for _ in range(1000):
        budget.reserve(100.0)


def test_prices() -> None:
    price = PriceConfig(input_per_million=2.0, output_per_million=8.0)
    assert price_of(price, 50_000, 500) == pytest.approx(0.104)
    assert price_of(None, 50_000, 500) is None
    assert price_of(price, None, 500) is None
