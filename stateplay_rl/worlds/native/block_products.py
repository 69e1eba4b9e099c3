"""Queries, keys and values of one input by frozen weights, as one operator: its backward adds in the products.

Autograd makes the input's three gradients apart and then sums them: four passes over [N, D] that the products can do on
the way. Shapes: B batch, N tokens, D width, P width of a projection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stateplay_rl.worlds.native.block_operators import refuse_other_gradients

_OPERATOR = "stateplay_rl::three_products"


def three_products(x_BND: Tensor, first: nn.Linear, second: nn.Linear, third: nn.Linear) -> tuple[Tensor, ...]:
    """The three Linears of one input, [B, N, P] each; weights and biases get no gradient.

    Raises:
        RuntimeError: a weight or bias wants a gradient.
    """
    weights = [linear.weight.to(x_BND.dtype) for linear in (first, second, third)]
    biases = [linear.bias.to(x_BND.dtype) for linear in (first, second, third)]
    found: tuple[Tensor, ...] = torch.ops.stateplay_rl.three_products(x_BND, *weights, *biases)
    return found


@torch.library.custom_op(_OPERATOR, mutates_args=())
def _three_products(
    x: Tensor, first: Tensor, second: Tensor, third: Tensor, bias_1: Tensor, bias_2: Tensor, bias_3: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return F.linear(x, first, bias_1), F.linear(x, second, bias_2), F.linear(x, third, bias_3)


@_three_products.register_fake
def _(x: Tensor, first: Tensor, second: Tensor, third: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(*x.shape[:-1], len(weight)) for weight in (first, second, third))


@torch.library.custom_op(f"{_OPERATOR}_backward", mutates_args=())
def _backward(
    d_first: Tensor, d_second: Tensor, d_third: Tensor, first: Tensor, second: Tensor, third: Tensor
) -> Tensor:
    total = d_first.flatten(0, -2) @ first
    total.addmm_(d_second.flatten(0, -2), second)
    total.addmm_(d_third.flatten(0, -2), third)
    return total.reshape(*d_first.shape[:-1], first.shape[1])


@_backward.register_fake
def _(d_first: Tensor, _d_second: Tensor, _d_third: Tensor, first: Tensor, *_: Any) -> Tensor:
    return d_first.new_empty(*d_first.shape[:-1], first.shape[1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    refuse_other_gradients(ctx.needs_input_grad, allowed=1, name="three_products")
    ctx.save_for_backward(*inputs[1:4])


def _gradient(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    found: Tensor = torch.ops.stateplay_rl.three_products_backward(*gradients, *ctx.saved_tensors)
    return found, *[None] * 6


_three_products.register_autograd(_gradient, setup_context=_save)
