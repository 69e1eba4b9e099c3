"""Pieces of a long input: the same numbers, each piece computed twice in all, dropout repeated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stateplay_rl.reward_model.recomputing import InPieces


class Counted(nn.Module):
    """Two trained products with dropout between them; counts the rows that it was given."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.down, self.up = (nn.Parameter(torch.randn(3, 3, generator=draw)) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.rows: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(x.shape[1])
        return self.dropout(x @ self.up.mT @ self.down.mT).tanh() @ self.up


def inputs(rows: int = 10) -> Tensor:
    return torch.randn(1, rows, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()


def gradients(out: Tensor, *tensors: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum(), tensors))


@pytest.mark.parametrize("trained", [True, False])
def test_the_whole_and_the_pieces_have_one_gradient(trained: bool) -> None:
    net = Counted(0.0)
    for parameter in net.parameters():
        parameter.requires_grad_(trained)
    x = inputs()
    wanted_of = [x, *(net.parameters() if trained else ())]
    expected = net(x)
    pieces = InPieces(net.forward, list(net.parameters()), 4, dim=1)
    found = pieces(x)
    torch.testing.assert_close(found, expected)
    for a, b in zip(gradients(found, *wanted_of), gradients(expected, *wanted_of), strict=True):
        torch.testing.assert_close(a, b)


def test_an_input_without_gradient_still_trains_the_parameters() -> None:
    net, x = Counted(0.0), inputs().detach()
    pieces = InPieces(net.forward, list(net.parameters()), 4, dim=1)
    for a, b in zip(gradients(pieces(x), *net.parameters()), gradients(net(x), *net.parameters()), strict=True):
        torch.testing.assert_close(a, b)


def test_a_checkpointed_layer_computes_each_piece_twice_and_not_three_times() -> None:
    net, x = Counted(0.0), inputs()
    pieces = InPieces(net.forward, list(net.parameters()), 4, dim=1)
    out = checkpoint(lambda x: x + pieces(x * 2.0), x, use_reentrant=False)
    assert net.rows == [4, 4, 2]
    found = gradients(out, x, *net.parameters())
    assert net.rows == [4, 4, 2] * 2
    for a, b in zip(found, gradients(x + net(x * 2.0), x, *net.parameters()), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_dropout_and_autocast_are_those_of_the_forward_pass(dtype: torch.dtype | None) -> None:
    """The backward pass runs outside of autocast, with the generator elsewhere: the mask must be drawn again."""
    net, x = Counted(0.5), inputs()
    pieces = InPieces(net.forward, list(net.parameters()), 4, dim=1)
    found = []
    for forward in (pieces, lambda x: torch.cat([net(part) for part in x.split(4, dim=1)], dim=1)):
        torch.manual_seed(5)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is not None):
            out = forward(x)
        torch.rand(7)
        found.append((out, *gradients(out.float(), x, *net.parameters())))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2 if dtype else 1e-5, atol=1e-2 if dtype else 1e-6)


def test_the_generator_goes_on_as_if_nothing_had_been_repeated() -> None:
    net, x = Counted(0.5), inputs()
    pieces = InPieces(net.forward, list(net.parameters()), 4, dim=1)
    torch.manual_seed(5)
    out = pieces(x)
    state = torch.get_rng_state()
    gradients(out, x)
    assert torch.equal(torch.get_rng_state(), state)


def test_short_inputs_and_passes_without_gradient_run_plainly() -> None:
    net, x = Counted(0.0), inputs(3)
    assert torch.equal(InPieces(net.forward, (), 4, dim=1)(x), net(x))
    with torch.no_grad():
        torch.testing.assert_close(InPieces(net.forward, (), 2, dim=1)(x), net(x))
