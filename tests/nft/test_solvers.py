"""The Euler sampler: golden paths, the pinned slot, dtypes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.nft.solvers import Euler, pin_first_slot, solve, solver_steps

GOLDEN = load_file(Path(__file__).parents[1] / "golden" / "wan_schedule.safetensors")


@pytest.mark.parametrize("steps", [4, 10, 30, 50])
def test_constant_velocity_path_is_golden(steps):
    """The stored path starts at linspace(-1, 1, 8) with v = -2 x0, so it ends at x0 - v = 3 x0."""
    start = torch.linspace(-1, 1, 8)[None]
    path = list(solver_steps(Euler, lambda x, s: -2 * start, start, sampling_sigmas(steps)))
    assert (torch.cat(path) - GOLDEN[f"sampling{steps}.euler_const_v"]).abs().max() <= 1e-6
    assert torch.allclose(path[-1], 3 * start, atol=1e-6)


def test_true_flow_is_recovered_in_one_step():
    """v = eps - x0 is constant along the straight path, so one Euler step from eps lands on x0."""
    x0, eps = torch.randn(2, 3, 2, 2, 2, generator=torch.Generator().manual_seed(0)).double().unbind()
    out = solve(Euler, lambda x, s: (eps - x0)[None], eps[None], sampling_sigmas(1), latent_dtype=torch.float64)
    assert torch.allclose(out[0], x0, atol=1e-12)


def test_slot_zero_is_pinned_before_the_first_and_after_every_step():
    first = torch.full((1, 2, 1, 1, 1), 7.0)
    noise = torch.zeros(1, 2, 3, 1, 1)
    seen = []

    def velocity(x, sigma_B):
        seen.append(x[:, :, 0].clone())
        return torch.ones_like(x)

    path = list(solver_steps(Euler, velocity, noise, sampling_sigmas(3), pin_first_slot(first)))
    assert all(bool((s == 7).all()) for s in seen)
    assert all(bool((x[:, :, 0] == 7).all()) for x in path)
    assert torch.allclose(path[-1][:, :, 1:], torch.full((1, 2, 2, 1, 1), -1.0), atol=1e-6)
    assert bool((noise == 0).all()), "the caller's noise must not be written"


def test_one_sigma_per_sample_reaches_the_model():
    sigmas = sampling_sigmas(2)
    seen = []
    solve(Euler, lambda x, s: (seen.append(s), torch.zeros_like(x))[1], torch.zeros(3, 1, 2, 1, 1), sigmas)
    assert [s.tolist() for s in seen] == [[float(v)] * 3 for v in sigmas]


def test_latents_stay_float32_unless_asked():
    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(1)).bfloat16()
    velocity = lambda x, s: x.bfloat16()  # noqa: E731
    assert solve(Euler, velocity, x, sampling_sigmas(4)).dtype == torch.float32
    assert solve(Euler, velocity, x, sampling_sigmas(4), latent_dtype=torch.bfloat16).dtype == torch.bfloat16


def test_empty_grid_is_refused():
    with pytest.raises(ValueError, match="empty"):
        solve(Euler, lambda x, s: x, torch.zeros(1, 1), torch.zeros(0))
