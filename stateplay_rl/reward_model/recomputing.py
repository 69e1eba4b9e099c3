"""A module's forward over pieces of a long input, each computed once more in the backward pass.

Inside a checkpointed layer torch's own `checkpoint` would compute each piece three times: the layer is recomputed
whole, pieces included, before the pieces are. Here all inputs are kept before the first piece runs, so that the
layer's recomputation ends there. Shapes: L tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class InPieces:
    """Forward of a module over pieces of its inputs; row by row the same.

    Args:
        whole: the forward of one piece.
        parameters: what of it is trained.
        rows: size of a piece.
        dim: the axis that is cut.
    """

    whole: Callable[..., Tensor]
    parameters: Sequence[nn.Parameter]
    rows: int
    dim: int

    def __call__(self, *inputs: Tensor) -> Tensor:
        if inputs[0].shape[self.dim] <= self.rows:
            return self.whole(*inputs)
        if not torch.is_grad_enabled():
            return torch.cat([self.whole(*piece) for piece in self.cut(inputs)], dim=self.dim)
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        # A trained parameter beside the inputs, so that it has a node of the graph even where these need no gradient.
        kept: Tensor = _Keep.apply(len(inputs), *inputs, *trained[:1])  # type: ignore[no-untyped-call]
        # In a list, or it would count as an input. The tensor, not its node alone: torch 2.11 frees that with it.
        found: Tensor = _Recomputed.apply(self, [kept], len(inputs), *inputs, *trained)  # type: ignore[no-untyped-call]
        return found

    def cut(self, inputs: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """The pieces, in order."""
        return list(zip(*(torch.split(x, self.rows, dim=self.dim) for x in inputs), strict=True))


class _Keep(torch.autograd.Function):
    """Keeps tensors where saved-tensor hooks see them: they may be recomputed, or wait on the host."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors[:count])
        return tensors[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Tensor:
        raise AssertionError("nothing depends on what only keeps")


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pieces: InPieces, kept: list[Tensor], count: int, *tensors: Tensor) -> Tensor:
        ctx.pieces, ctx.kept, ctx.trained = pieces, kept, tensors[count:]
        ctx.needed = [x.requires_grad for x in tensors[:count]]
        ctx.state = _State.now(tensors[0].device)
        return torch.cat([pieces.whole(*piece) for piece in pieces.cut(tensors[:count])], dim=pieces.dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        pieces: InPieces = ctx.pieces
        d_inputs: list[list[Tensor]] = [[] for needed in ctx.needed if needed]
        sums: list[Tensor] | None = None
        d_outs = torch.split(gradients[0], pieces.rows, dim=pieces.dim)
        with ctx.state.restored(), torch.enable_grad():
            for piece, d_out in zip(pieces.cut(ctx.kept[0].grad_fn.saved_tensors), d_outs, strict=True):
                there = [x.detach().requires_grad_(needed) for x, needed in zip(piece, ctx.needed, strict=True)]
                wanted = [x for x in there if x.requires_grad]
                found = torch.autograd.grad(pieces.whole(*there), [*wanted, *ctx.trained], d_out)
                for place, gradient in zip(d_inputs, found[: len(wanted)], strict=True):
                    place.append(gradient)
                ours = found[len(wanted) :]
                sums = list(ours) if sums is None else [a + b for a, b in zip(sums, ours, strict=True)]
        joined = iter([torch.cat(parts, dim=pieces.dim) for parts in d_inputs])
        ctx.kept = None
        return (None, None, None, *(next(joined) if needed else None for needed in ctx.needed), *(sums or []))


@dataclass(frozen=True)
class _State:
    """Random state and autocast of a forward pass, for its repetition in the backward pass."""

    device: torch.device
    random: Tensor
    random_on_device: Tensor | None
    autocast: bool
    dtype: torch.dtype

    @classmethod
    def now(cls, device: torch.device) -> _State:
        on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(
            device,
            torch.get_rng_state(),
            on_device,
            torch.is_autocast_enabled(device.type),
            torch.get_autocast_dtype(device.type),
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        devices = [] if self.random_on_device is None else [self.device]
        with (
            torch.random.fork_rng(devices=devices, device_type="cuda"),
            torch.autocast(self.device.type, dtype=self.dtype, enabled=self.autocast),
        ):
            torch.set_rng_state(self.random)
            if self.random_on_device is not None:
                torch.cuda.set_rng_state(self.random_on_device, self.device)
            yield
