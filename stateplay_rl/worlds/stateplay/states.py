"""State sequences of a checkout: what a forward of its model function returned, computed at most once.

The checkout gives states only as results of a whole forward. So `states()` is a promise that the next forward of
the same conditions keeps; only when nothing else ran before somebody looks does it cost a forward of its own.

Shapes: B batch, f latent slots, M state tokens per slot, S state width, C backbone width, Z codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stateplay_rl.worlds.base import StateSequence


@dataclass(frozen=True)
class CheckoutResult:
    """State results of a batch: low [B, f, M, S], tokens [B, M*f, C], logits [B, f-1, M, Z]."""

    low: Tensor
    tokens: Tensor
    logits: Tensor


class CheckoutStates(StateSequence):
    """A state sequence that is filled by the first forward of its conditions.

    Args:
        compute: runs that forward when nobody else has.
        batch: B of the conditions that the promise was made for.
        rows: which of its rows these are.
        shared: the results, one box for a sequence and all its selections.
    """

    batch: int
    rows: tuple[int, ...]
    _compute: Callable[[], CheckoutResult]
    _shared: list[CheckoutResult]

    def __init__(
        self,
        compute: Callable[[], CheckoutResult],
        batch: int,
        rows: tuple[int, ...] | None = None,
        shared: list[CheckoutResult] | None = None,
    ) -> None:
        # The base is a frozen dataclass of plain tensors; here its fields are computed.
        values = {"_compute": compute, "batch": batch, "rows": tuple(range(batch)) if rows is None else rows}
        for name, value in {**values, "_shared": [] if shared is None else shared}.items():
            object.__setattr__(self, name, value)

    @property
    def result(self) -> CheckoutResult:
        """The whole batch's results."""
        if not self._shared:
            self._shared.append(self._compute())
        return self._shared[0]

    def offer(self, result: CheckoutResult) -> None:
        """Keep the results of a forward of these conditions, unless there are some or only a part of the rows ran."""
        if not self._shared and self._is_whole and len(result.low) == self.batch:
            self._shared.append(result)

    @property
    def _is_whole(self) -> bool:
        return self.rows == tuple(range(self.batch))

    def _pick(self, values: Tensor) -> Tensor:
        return values if self._is_whole else values[torch.tensor(self.rows, device=values.device)]

    @property
    def low_BfMS(self) -> Tensor:  # noqa: N802 (a field of the base)
        """[B, f, M, S] before the output projection."""
        return self._pick(self.result.low)

    @property
    def tokens_BNC(self) -> Tensor:  # noqa: N802 (a field of the base)
        """[B, M*f, C] after it."""
        return self._pick(self.result.tokens)

    @property
    def logits(self) -> Tensor:
        """[B, f-1, M, codes] of the predictor."""
        return self._pick(self.result.logits)

    def select(self, rows: Sequence[int]) -> CheckoutStates:
        """Rows `rows` (repeats allowed); they share the results."""
        return CheckoutStates(self._compute, self.batch, tuple(self.rows[row] for row in rows), self._shared)
