"""Diffusers' schedulers driven over a grid of ours, on the known flow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.nft import analytic_flow as flow


def public_path(scheduler: Any, sigmas: Tensor, scheduler_sigmas: Tensor) -> Tensor:
    """Latents after each step, float64 [steps, 9].

    Args:
        scheduler: a flow scheduler of diffusers.
        sigmas: what the velocity is told.
        scheduler_sigmas: what the scheduler reckons with; the 0 at the end is added here.
    """
    scheduler.set_timesteps(len(sigmas))
    scheduler.sigmas = torch.cat([scheduler_sigmas, scheduler_sigmas.new_zeros(1)])
    x, path = flow.path(1.0), []
    for sigma, timestep in zip(sigmas, scheduler.timesteps, strict=True):
        if scheduler.step_index is None:
            scheduler.set_begin_index(0)
        x = scheduler.step(flow.velocity(x, sigma[None]), timestep, x, return_dict=False)[0]
        path.append(x)
    return torch.cat(path)
