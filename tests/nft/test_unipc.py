"""UniPC: orders on a known flow, the public scheduler, refusals."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from stateplay_rl.nft.multistep import DpmSolver2M
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.nft.solvers import solve, solver_steps
from stateplay_rl.nft.unipc import LARGEST_SIGMA, UniPC
from tests.nft import analytic_flow as flow

F64 = torch.float64


def inner_errors(order: int) -> list[float]:
    """Errors at sigma 0.1 from 0.9, evenly spaced: the grid's ends, where every rule falls to order 1, are left out."""
    errors = []
    for steps in (40, 80):
        sigmas = torch.linspace(0.9, 0.1, steps + 1, dtype=F64)
        path = list(solver_steps(partial(UniPC, order=order), flow.velocity, flow.path(0.9), sigmas, latent_dtype=F64))
        errors.append(float((path[steps - 1] - flow.path(0.1)).abs().max()))
    return errors


@pytest.mark.parametrize("order, least", [(1, 1.7), (2, 2.7), (3, 2.7)])
def test_orders_inside_the_grid(order, least):
    """The corrector adds an order; the last predictor, not corrected any more, has local order 3."""
    errors = inner_errors(order)
    assert flow.order(errors) > least
    assert order == 1 or errors[-1] < inner_errors(order - 1)[-1]


@pytest.mark.parametrize("order", [2, 3])
def test_order_on_the_models_own_grid_down_to_zero(order):
    """The last step is of order 1 and as long as 5 / steps: two is all that is left of a higher order."""
    errors = []
    for steps in (320, 640):
        sigmas = sampling_sigmas(steps, dtype=F64)
        end = solve(partial(UniPC, order=order), flow.velocity, flow.path(1.0), sigmas, latent_dtype=F64)
        errors.append(float((end - flow.path(0.0)).abs().max()))
    assert flow.order(errors) > 1.8


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("steps", [5, 12])
def test_equals_the_public_scheduler(order, steps):
    """diffusers clamps sigma 1 itself to 1 - 1e-6, we its lambda only: a difference of that size."""
    pytest.importorskip("diffusers")
    from diffusers import UniPCMultistepScheduler

    from tests.nft.public_scheduler import public_path

    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, solver_order=order, solver_type="bh2"
    )
    sigmas = sampling_sigmas(steps, dtype=F64)
    theirs = public_path(scheduler, sigmas, sigmas.clamp(max=LARGEST_SIGMA))
    ours = torch.cat(
        list(solver_steps(partial(UniPC, order=order), flow.velocity, flow.path(1.0), sigmas, latent_dtype=F64))
    )
    assert (ours - theirs).abs().max() < 2e-5


def test_better_than_the_rule_without_a_corrector():
    """A property of this flow, not of every: both of order 2 outside, the corrected one nearer."""
    sigmas = sampling_sigmas(30, dtype=F64)
    errors = [
        float((solve(rule, flow.velocity, flow.path(1.0), sigmas, latent_dtype=F64) - flow.path(0.0)).abs().max())
        for rule in (partial(UniPC, order=2), DpmSolver2M)
    ]
    assert errors[0] < errors[1]


def test_unknown_order_is_refused():
    with pytest.raises(ValueError, match="order 1, 2 or 3"):
        UniPC(sampling_sigmas(3), 4)
