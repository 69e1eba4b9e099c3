"""What requests cost, and the limits that stop a command before it costs too much."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from stateplay_rl.config.judging import PriceConfig, RequestsConfig
from stateplay_rl.errors import OutsideError


class BudgetReachedError(OutsideError):
    """The budget is spent: what was paid is kept, and the command can be resumed with a larger one."""


def price_of(price: PriceConfig | None, input_tokens: int | None, output_tokens: int | None) -> float | None:
    """Cost of so many tokens in the table's currency; None without a price or without counts."""
    if price is None or input_tokens is None or output_tokens is None:
        return None
    return (input_tokens * price.input_per_million + output_tokens * price.output_per_million) / 1e6


@dataclass(frozen=True)
class Reservation:
    """Part of the budget that is held for one request in flight."""

    cost: float


class Budget:
    """Counts requests that are or may be billed, by this command alone.

    A refused request gives back what was held for it, so an outage costs no budget.

    Args:
        config: the limits.
    """

    def __init__(self, config: RequestsConfig) -> None:
        self._most_requests, self._most_cost = config.max_requests, config.max_cost
        self._lock = threading.Lock()
        self.requests = 0
        self.cost = 0.0

    def reserve(self, most_cost: float | None) -> Reservation:
        """Hold one request and the most that it can cost.

        Raises:
            BudgetReachedError: it would go beyond a limit.
        """
        cost = most_cost or 0.0
        with self._lock:
            if self._most_requests is not None and self.requests + 1 > self._most_requests:
                raise BudgetReachedError(
                    f"the budget of {self._most_requests} requests is reached",
                    "nothing is lost: raise --max-requests and run again with --resume",
                )
            if self._most_cost is not None and self.cost + cost > self._most_cost:
                raise BudgetReachedError(
                    f"the budget of {self._most_cost:g} is reached: {self.cost:.4f} spent or held, the next request "
                    f"may cost {cost:.4f}",
                    "nothing is lost: raise --max-cost and run again with --resume",
                )
            self.requests += 1
            self.cost += cost
        return Reservation(cost)

    def settle(self, held: Reservation, cost: float | None, *, billed: bool) -> None:
        """Replace what was held by what it came to.

        Args:
            held: of `reserve`.
            cost: the true cost; None when unknown: what was held stays.
            billed: False gives everything back.
        """
        with self._lock:
            if not billed:
                self.requests -= 1
                self.cost -= held.cost
            elif cost is not None:
                self.cost += cost - held.cost
