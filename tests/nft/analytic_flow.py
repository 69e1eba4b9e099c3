"""A flow whose path is known: x0 ~ N(MEAN, DEVIATION^2), noise standard normal, everything in float64.

At sigma the samples are N((1 - sigma) MEAN, s^2) with s^2 = ((1 - sigma) DEVIATION)^2 + sigma^2, and the probability
flow keeps each sample's quantile: x(sigma) = (1 - sigma) MEAN + s z, from x(1) = z to x(0) = MEAN + DEVIATION z.
"""

from __future__ import annotations

import torch
from torch import Tensor

MEAN, DEVIATION = 0.7, 0.9
QUANTILES = torch.linspace(-2, 2, 9, dtype=torch.float64)[None]


def spread(sigma: Tensor | float) -> Tensor:
    sigma = torch.as_tensor(sigma, dtype=torch.float64)
    return (((1 - sigma) * DEVIATION) ** 2 + sigma**2).sqrt()


def path(sigma: float) -> Tensor:
    """x at sigma for every quantile, [1, 9]."""
    return (1 - sigma) * MEAN + spread(sigma) * QUANTILES


def velocity(x: Tensor, sigma_B: Tensor) -> Tensor:
    """dx/dsigma along the path, from x alone."""
    sigma = sigma_B[:, None].double()
    slope = (sigma - (1 - sigma) * DEVIATION**2) / spread(sigma)
    return -MEAN + slope * (x - (1 - sigma) * MEAN) / spread(sigma)


def order(errors: list[float]) -> float:
    """Convergence order from the errors at doubling step counts: the last halving."""
    return float(torch.log2(torch.tensor(errors[-2] / errors[-1])))
