"""UniPC, the unified predictor-corrector (Zhao et al. 2023, arXiv 2302.04867), of order 2 or 3."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stateplay_rl.nft.multistep import log_snr

LARGEST_SIGMA = 1.0 - 1e-6
"""Where lambda of sigma 1 is taken: there it is infinite, and the corrector's weights need a number."""


class UniPC:
    """Predictor and corrector in the clean estimate, B(h) = e^h - 1 (the paper's B_2), one velocity a step.

    The velocity at a step's end corrects that end before it predicts the next one; it is not computed again at the
    corrected point. As in the public code the predictor of order 2 and the corrector of order 1 weigh 1/2, and the
    order falls to 1 at both ends of the grid: at the first step for want of a history, at the last because lambda is
    infinite at sigma 0. A difference to it: sigma 1 itself stays 1, only its lambda is clamped.

    Args:
        sigmas: falling grid [steps].
        order: 1, 2 or 3, of the predictor; the corrector adds one.

    Raises:
        ValueError: another order.
    """

    def __init__(self, sigmas: Tensor, order: int) -> None:
        if order not in (1, 2, 3):
            raise ValueError(f"UniPC has order 1, 2 or 3 here, not {order}")
        self._order = order
        self._sigmas: list[float] = [*sigmas.double().tolist(), 0.0]
        self._lambdas = [log_snr(min(sigma, LARGEST_SIGMA)) for sigma in self._sigmas]
        self._history: list[Tensor] = []
        self._used = 0
        self._start: Tensor | None = None

    def __call__(self, x: Tensor, velocity: Tensor, step: int) -> Tensor:
        """See `Rule`."""
        clean = x - velocity * self._sigmas[step]
        if self._start is not None:
            x = self._towards(self._start, step - 1, clean)
        self._history = [clean, *self._history][: self._order]
        self._used = min(len(self._history), len(self._sigmas) - 1 - step)
        self._start = x
        return self._towards(x, step, None)

    def _towards(self, start: Tensor, step: int, clean_at_end: Tensor | None) -> Tensor:
        """From `start` over step `step`: the predictor, or, given the clean estimate at the end, the corrector."""
        newest, earlier = self._history[0], self._history[1 : self._used]
        length = self._lambdas[step + 1] - self._lambdas[step]
        places = [(self._lambdas[step - k] - self._lambdas[step]) / length for k in range(1, self._used)]
        slopes = [(clean - newest) / place for clean, place in zip(earlier, places, strict=True)]
        if clean_at_end is not None:
            places, slopes = [*places, 1.0], [*slopes, clean_at_end - newest]
        estimate = newest
        for weight, slope in zip(_weights(places, length), slopes, strict=True):
            estimate = estimate + slope * weight
        ratio = self._sigmas[step + 1] / self._sigmas[step]
        return start * ratio + estimate * (1.0 - ratio)


def _weights(places: list[float], length: float) -> list[float]:
    """Weights of the divided differences: sum_k w_k r_k^n = (n + 1)! phi_{n+2}(-h) / phi_1(-h), n = 0, 1, ...

    Args:
        places: r_k, where the estimates lie, in units of the step's length in lambda; none is 0.
        length: h, the step's length in lambda; may be infinite only without places.
    """
    if len(places) <= 1:
        return [0.5] * len(places)
    growth = math.expm1(-length)
    term, factorial, right = growth / -length - 1.0, 1, []
    for n in range(1, len(places) + 1):
        right.append(term * factorial / growth)
        factorial *= n + 1
        term = term / -length - 1.0 / factorial
    matrix = torch.tensor([[place**n for place in places] for n in range(len(places))], dtype=torch.float64)
    weights: list[float] = torch.linalg.solve(matrix, torch.tensor(right, dtype=torch.float64)).tolist()
    return weights
