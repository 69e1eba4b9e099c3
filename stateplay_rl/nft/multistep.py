"""Rules of order 2 that reuse the step before: DPM-Solver++(2M), and Adams-Bashforth in sigma.

Rectified flow has x = alpha x0 + sigma eps with alpha = 1 - sigma, so lambda = log(alpha / sigma) runs from minus
infinity (sigma 1, pure noise) to infinity (sigma 0, clean).
"""

from __future__ import annotations

import math

from torch import Tensor


def log_snr(sigma: float) -> float:
    """lambda = log((1 - sigma) / sigma); -inf at 1, inf at 0."""
    if sigma >= 1.0:
        return -math.inf
    return math.inf if sigma <= 0.0 else math.log1p(-sigma) - math.log(sigma)


class DpmSolver2M:
    """DPM-Solver++(2M), midpoint form (Lu et al. 2022, arXiv 2211.01095, Algorithm 2), on the model's own grid.

    The clean estimate x0 = x - sigma v is extrapolated along lambda. The first two steps are of order 1, for the grid
    begins at lambda = -inf; so is the last, which ends at lambda = inf. There the rule is Euler's: for rectified flow
    the first order of DPM-Solver++ and Euler are one formula.

    Args:
        sigmas: falling grid [steps].
    """

    def __init__(self, sigmas: Tensor) -> None:
        self._sigmas: list[float] = [*sigmas.double().tolist(), 0.0]
        self._before: Tensor | None = None

    def __call__(self, x: Tensor, velocity: Tensor, step: int) -> Tensor:
        """See `Rule`."""
        now, end = self._sigmas[step], self._sigmas[step + 1]
        clean = estimate = x - velocity * now
        if self._before is not None and end > 0.0:
            length, length_before = log_snr(end) - log_snr(now), log_snr(now) - log_snr(self._sigmas[step - 1])
            estimate = clean + (clean - self._before) * (0.5 * length / length_before)
        self._before = clean
        return x * (end / now) + estimate * (1.0 - end / now)


class AdamsBashforth2:
    """Two-step Adams-Bashforth on the velocity, along sigma itself; only the first step is of order 1.

    Along sigma both ends of the grid are ordinary points, so the long last step of a short grid keeps its order.

    Args:
        sigmas: falling grid [steps].
    """

    def __init__(self, sigmas: Tensor) -> None:
        self._sigmas: list[float] = [*sigmas.double().tolist(), 0.0]
        self._before: Tensor | None = None

    def __call__(self, x: Tensor, velocity: Tensor, step: int) -> Tensor:
        """See `Rule`."""
        delta = self._sigmas[step + 1] - self._sigmas[step]
        before, self._before = self._before, velocity
        if before is None:
            return x + velocity * delta
        delta_before = self._sigmas[step] - self._sigmas[step - 1]
        return x + (velocity + (velocity - before) * (0.5 * delta / delta_before)) * delta
