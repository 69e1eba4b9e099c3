"""Samplers by name, and the Taylor cache."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from stateplay_rl.config.rollout import Solver
from stateplay_rl.nft.samplers import SOLVERS, TaylorCache, evaluations, is_computed
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.nft.solvers import Euler, pin_first_slot, solve, solver_steps


def test_settings_and_rules_have_the_same_names():
    assert set(get_args(Solver)) == set(SOLVERS)


@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_every_rule_recovers_the_true_flow(name):
    """v = eps - x0 is constant along a straight path, and every consistent rule is exact there."""
    x0, eps = torch.randn(2, 3, 2, 2, 2, generator=torch.Generator().manual_seed(0)).double().unbind()
    out = solve(SOLVERS[name], lambda x, s: (eps - x0)[None], eps[None], sampling_sigmas(6), latent_dtype=torch.float64)
    assert torch.allclose(out[0], x0, atol=1e-6)


@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_every_rule_keeps_the_first_slot_and_lets_nothing_out_of_it(name):
    """Whatever the model says about slot 0, it is the first frame after every step, and no other slot notices."""
    first, noise = torch.full((1, 2, 1, 1, 1), 7.0), torch.randn(1, 2, 3, 1, 1)

    def velocity(junk: float):
        def of(x, sigma_B):
            v = x * 0.3 + sigma_B.reshape(-1, 1, 1, 1, 1)
            v[:, :, 0] = junk
            return v

        return of

    paths = [
        list(solver_steps(SOLVERS[name], velocity(j), noise, sampling_sigmas(5), pin_first_slot(first)))
        for j in (0.0, 1e3)
    ]
    for plain, junk in zip(*paths, strict=True):
        assert torch.equal(plain, junk)
        assert bool((plain[:, :, 0] == 7).all())


@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_a_sample_does_not_depend_on_its_batch(name):
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(2))
    velocity = lambda x, s: x.sin() * s[:, None]  # noqa: E731
    together = solve(SOLVERS[name], velocity, x, sampling_sigmas(7))
    alone = torch.cat([solve(SOLVERS[name], velocity, x[k : k + 1], sampling_sigmas(7)) for k in range(3)])
    assert torch.equal(together, alone)


def test_the_taylor_cache_asks_on_few_steps_and_is_exact_on_lines():
    """Every 3: steps 0, 1, 2, then 4, 7, 10. A velocity linear in the step number is predicted without error."""
    asked = []

    def velocity(x, sigma_B):
        asked.append(step)
        return torch.full_like(x, 2.0 * step + 1.0)

    cache, x = TaylorCache(velocity, 3), torch.zeros(2, 3)
    for step in range(12):  # read by `velocity`
        assert torch.allclose(cache(x, torch.ones(2)), torch.full_like(x, 2.0 * step + 1.0))
    assert asked == [0, 1, 2, 4, 7, 10] == [step for step in range(12) if is_computed(step, 3)]
    assert (evaluations(12, 3), evaluations(12, None)) == (6, 12)


def test_the_taylor_cache_is_a_part_of_any_sampler():
    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(3))
    velocity = lambda x, s: x * s[:, None]  # noqa: E731
    full = solve(Euler, velocity, x, sampling_sigmas(12))
    cached = solve(Euler, TaylorCache(velocity, 2), x, sampling_sigmas(12))
    assert 0 < float((full - cached).abs().max()) < 0.05 * float(full.abs().max())


def test_a_cache_of_every_step_is_refused():
    with pytest.raises(ValueError, match="2 or more"):
        TaylorCache(lambda x, s: x, 1)
