"""The paid requests of a segment: how many at most, what they hold, and what they cost at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stateplay_rl.config.score import SingleJudgeConfig
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.judges.budget import price_of
from stateplay_rl.judges.protocol import JudgingProtocol
from stateplay_rl.judges.request_size import GroupShape, RequestSize, most_of_request
from stateplay_rl.stages.remote_judging import EXPECTED_OUTPUT_TOKENS
from stateplay_rl.stages.train_nft.inputs import HAND_MADE
from stateplay_rl.stages.train_nft.segments import SegmentPlan

ATTEMPTS_PER_GROUP = 2
"""An answer that cannot be read is asked for once more; both are paid."""


@dataclass(frozen=True)
class PaidGroups:
    """Groups that one paid judge looks at, and the most that one of its requests holds."""

    judge: SingleJudgeConfig
    groups: int
    request: RequestSize

    @property
    def most_requests(self) -> int:
        """Every group asked about twice, within the judge's own budget."""
        most, limit = self.groups * ATTEMPTS_PER_GROUP, self.judge.requests.max_requests
        return most if limit is None else min(most, limit)

    @property
    def most_cost(self) -> float | None:
        """Of those requests at their largest, within the judge's own budget; None without a price."""
        one = self._price(self.judge.api.max_output_tokens)
        if one is None:
            return None
        most, limit = one * self.most_requests, self.judge.requests.max_cost
        return most if limit is None else min(most, limit)

    @property
    def expected_cost(self) -> float | None:
        """Of one request a group with an answer of the usual length."""
        one = self._price(EXPECTED_OUTPUT_TOKENS)
        return None if one is None else one * self.groups

    def _price(self, output_tokens: int) -> float | None:
        price = self.judge.requests.prices.get(self.judge.model)
        return price_of(price, self.request.input_tokens, output_tokens)


def paid_groups(
    config: TrainNftConfig, plan: SegmentPlan, shape: GroupShape, *, audited: int, heldout_groups: int
) -> list[PaidGroups]:
    """What the paid judges of a segment look at.

    Args:
        shape: the largest group.
        audited: groups that the auditing judge sees too.
        heldout_groups: held-out groups that the training judge sees within their own budget.

    Raises:
        InputError, CorruptionError: an example image is missing or unreadable.
    """
    training = 0 if plan.kind == HAND_MADE else plan.conditions
    groups = [(part, training + heldout_groups) for part in config.judge.paid]
    if config.audits.judge is not None:
        groups += [(part, audited) for part in config.audits.judge.paid]
    return [
        PaidGroups(part, count, most_of_request(JudgingProtocol(part.protocol), shape))
        for part, count in groups
        if count
    ]


def cost_bound(paid: Sequence[PaidGroups]) -> str:
    """The bound in words: requests, and money when the price table knows every model."""
    if not paid:
        return "0: no paid request"
    requests, groups = sum(p.most_requests for p in paid), sum(p.groups for p in paid)
    words = f"at most {requests} paid requests ({groups} groups, one more where an answer cannot be read)"
    costs = [p.most_cost for p in paid]
    expected = [p.expected_cost for p in paid]
    unknown = sorted({p.judge.model for p, cost in zip(paid, costs, strict=True) if cost is None})
    if unknown:
        return f"{words}; for money: the price of {', '.join(unknown)} in requests.prices of the judge"
    most = sum(cost for cost in costs if cost is not None)
    usual = sum(cost for cost in expected if cost is not None)
    tokens = max(p.request.input_tokens for p in paid)
    return f"at most {most:.2f}, about {usual:.2f} when all goes well: {words}, at most {tokens:,} input tokens each"
