"""DPM-Solver++(2M) and Adams-Bashforth: orders on a known flow, hand values, the public scheduler."""

from __future__ import annotations

import math

import pytest
import torch

from stateplay_rl.nft.multistep import AdamsBashforth2, DpmSolver2M, log_snr
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.nft.solvers import Euler, solve, solver_steps
from tests.nft import analytic_flow as flow
from tests.nft.public_scheduler import public_path

F64 = torch.float64


@pytest.mark.parametrize(
    "rule_of, least, most", [(Euler, 0.9, 1.1), (DpmSolver2M, 1.7, 2.3), (AdamsBashforth2, 1.9, 2.1)]
)
def test_orders_on_the_models_own_grid_down_to_zero(rule_of, least, most):
    errors = []
    for steps in (640, 1280):
        end = solve(rule_of, flow.velocity, flow.path(1.0), sampling_sigmas(steps, dtype=F64), latent_dtype=F64)
        errors.append(float((end - flow.path(0.0)).abs().max()))
    assert least < flow.order(errors) < most


def test_the_first_order_of_dpm_solver_is_euler():
    """One step, and the last one, have no history or an infinite lambda: then the two rules are one formula."""
    for sigmas in (sampling_sigmas(1, dtype=F64), torch.tensor([0.4], dtype=F64)):
        ends = [
            solve(r, flow.velocity, flow.path(float(sigmas[0])), sigmas, latent_dtype=F64) for r in (Euler, DpmSolver2M)
        ]
        assert torch.allclose(*ends, atol=1e-14)


def test_second_step_after_pure_noise_is_of_order_one():
    """lambda is -inf at sigma 1, so the step before counts nothing; from the third step on it does."""
    sigmas = sampling_sigmas(4, dtype=F64)
    euler, dpm = (
        list(solver_steps(r, flow.velocity, flow.path(1.0), sigmas, latent_dtype=F64)) for r in (Euler, DpmSolver2M)
    )
    assert torch.allclose(euler[1], dpm[1], atol=1e-14)
    assert not torch.allclose(euler[2], dpm[2], atol=1e-4)


def test_adams_bashforth_by_hand():
    """v = sigma: steps 1 -> 0.5 -> 0. Euler first: 1 * -0.5; then 0.5 - 0.5 * (1 - 0.5), so 0.25 * -0.5."""
    sigmas = torch.tensor([1.0, 0.5], dtype=F64)
    velocity = lambda x, s: torch.ones_like(x) * s[:, None].double()  # noqa: E731
    path = list(solver_steps(AdamsBashforth2, velocity, torch.zeros(1, 1, dtype=F64), sigmas, latent_dtype=F64))
    assert [float(x) for x in path] == pytest.approx([-0.5, -0.625])


@pytest.mark.parametrize("steps", [5, 12, 30])
def test_dpm_solver_equals_the_public_scheduler(steps):
    """Same sigmas, float64: diffusers' multistep scheduler, midpoint, of order 1 in the last step."""
    pytest.importorskip("diffusers")
    from diffusers import DPMSolverMultistepScheduler

    scheduler = DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, euler_at_final=True, lower_order_final=False
    )
    sigmas = sampling_sigmas(steps, dtype=F64)
    theirs = public_path(scheduler, sigmas, sigmas)
    ours = torch.cat(list(solver_steps(DpmSolver2M, flow.velocity, flow.path(1.0), sigmas, latent_dtype=F64)))
    assert (ours - theirs).abs().max() < 1e-6


def test_log_snr_and_its_ends():
    assert log_snr(0.5) == 0.0
    assert log_snr(0.2) == pytest.approx(math.log(4))
    assert (log_snr(1.0), log_snr(0.0)) == (-math.inf, math.inf)


@pytest.mark.parametrize("rule_of", [DpmSolver2M, AdamsBashforth2])
def test_latents_keep_their_dtype(rule_of):
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    out = solve(rule_of, lambda x, s: x.float() * 0.1, x, sampling_sigmas(6), latent_dtype=torch.bfloat16)
    assert out.dtype == torch.bfloat16
