"""Learning rate, summed gradients, and moments that survive a resume."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stateplay_rl.config.train_rm import RmOptimizerConfig
from stateplay_rl.errors import CheckError, CorruptionError
from stateplay_rl.reward_model.optimising import (
    GradientSum,
    learning_rate,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
)


def test_the_rate_rises_then_falls_to_nothing() -> None:
    config = RmOptimizerConfig(learning_rate=1.0, warm_up_share=0.2)
    rates = [learning_rate(config, step, 10) for step in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert 0.0 < rates[-1] < 0.05
    constant = RmOptimizerConfig(learning_rate=1.0, warm_up_share=0.0, schedule="constant")
    assert {learning_rate(constant, step, 10) for step in range(10)} == {1.0}


def alone(tensor: Tensor) -> Tensor:
    return tensor


def test_the_gradient_is_the_mean_over_groups_and_is_clipped() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    total = GradientSum([parameter])
    for factor in (2.0, 4.0):
        total.add((factor * parameter).sum(), 0.5)
    total.add((100.0 * parameter).sum(), 0.0)
    loss, norm = total.finish(alone, max_norm=1.0)
    assert loss == pytest.approx(9.0)
    assert norm == pytest.approx(3.0 * 2**0.5)
    assert parameter.grad is not None
    torch.testing.assert_close(parameter.grad, torch.full((2,), 2**-0.5))


def test_sums_of_ranks_do_not_depend_on_how_groups_are_shared() -> None:
    """Float64 sums: 8 groups on one rank and on two give the same float32 bits."""
    draws = torch.randn(8, 50, generator=torch.Generator().manual_seed(1))

    def summed(shares: list[list[int]]) -> Tensor:
        flats: list[Tensor] = []
        for share in shares:
            parameter = nn.Parameter(torch.ones(50))
            total = GradientSum([parameter])
            for index in share:
                total.add((draws[index] * parameter).sum(), 1 / 8)
            total.finish(lambda flat: flats.append(flat) or flat, max_norm=1e9)
        return torch.stack(flats).sum(0).float()

    assert torch.equal(summed([list(range(8))]), summed([[0, 2, 4, 6], [1, 3, 5, 7]]))


def test_what_is_not_finite_is_refused() -> None:
    parameter = nn.Parameter(torch.ones(1))
    total = GradientSum([parameter])
    total.add((parameter * float("inf")).sum(), 1.0)
    with pytest.raises(CheckError, match="not finite"):
        total.finish(alone, 1.0)


def test_moments_go_on_where_they_were() -> None:
    def step(parameter: nn.Parameter, optimizer: torch.optim.AdamW, value: float) -> None:
        parameter.grad = torch.full_like(parameter, value)
        optimizer.step()

    config = RmOptimizerConfig(learning_rate=0.1)
    one = nn.Parameter(torch.ones(3))
    first = make_optimizer(config, {"p": one})
    step(one, first, 1.0)
    two = nn.Parameter(one.detach().clone())
    second = make_optimizer(config, {"p": two})
    load_optimizer_state(second, ["p"], optimizer_state(first, ["p"]))
    for parameter, optimizer in ((one, first), (two, second)):
        step(parameter, optimizer, -3.0)
    assert torch.equal(one, two)
    with pytest.raises(CorruptionError, match=r"p\|exp_avg"):
        load_optimizer_state(second, ["p"], {"q|exp_avg": torch.ones(3)})
