"""AdamW on the adapter, its learning rate over the steps, and gradients that do not depend on the number of ranks.

Each group's gradient is added in float64 and ranks are summed in float64 before the one rounding to float32, as in the
training of the world model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stateplay_rl.config.train_rm import RmOptimizerConfig
from stateplay_rl.errors import CheckError, CorruptionError

_MOMENTS = ("exp_avg", "exp_avg_sq")


def learning_rate(config: RmOptimizerConfig, step: int, steps: int) -> float:
    """Rate of step 0..steps-1: a linear warm-up, then constant or a half cosine to zero."""
    warm = math.ceil(config.warm_up_share * steps)
    if step < warm:
        return config.learning_rate * (step + 1) / warm
    if config.schedule == "constant":
        return config.learning_rate
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


class GradientSum:
    """The mean gradient of a step's groups, in float64."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._sums = [torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in parameters]
        self.loss = 0.0

    def add(self, loss: Tensor, share: float) -> None:
        """Backward of one group's loss; `share` is 1 / number of groups of the step, or 0 to take part only."""
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            if parameter.grad is not None and share > 0.0:
                total.add_(parameter.grad.double(), alpha=share)
            parameter.grad = None
        if share > 0.0:
            self.loss += share * float(loss.detach())

    def finish(self, sum_over_ranks: Callable[[Tensor], Tensor], max_norm: float) -> tuple[float, float]:
        """Sum over ranks, clip, and leave float32 gradients in the parameters; returns (loss, norm before clipping).

        Raises:
            CheckError: the loss or a gradient is not finite.
        """
        last = torch.tensor([self.loss], dtype=torch.float64, device=self._sums[0].device)
        flat = sum_over_ranks(torch.cat([*(total.reshape(-1) for total in self._sums), last]))
        norm = float(flat[:-1].norm())
        loss = float(flat[-1])
        if not math.isfinite(norm) or not math.isfinite(loss):
            raise CheckError(
                f"the student's loss ({loss}) or gradient ({norm}) is not finite", "use a smaller learning rate"
            )
        scale = min(1.0, max_norm / norm) if norm > 0.0 else 1.0
        pieces = torch.split(flat[:-1] * scale, [p.numel() for p in self._parameters])
        for parameter, piece in zip(self._parameters, pieces, strict=True):
            parameter.grad = piece.reshape(parameter.shape).to(parameter.dtype)
        return loss, norm


def make_optimizer(config: RmOptimizerConfig, parameters: Mapping[str, nn.Parameter]) -> torch.optim.AdamW:
    """AdamW over the adapter."""
    return torch.optim.AdamW(
        parameters.values(),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
    )


def optimizer_state(optimizer: torch.optim.AdamW, names: Sequence[str]) -> dict[str, Tensor]:
    """Moments and step counts by parameter name."""
    found: dict[str, Tensor] = {}
    for name, parameter in zip(names, optimizer.param_groups[0]["params"], strict=True):
        state: dict[str, Any] = optimizer.state[parameter]
        if state:
            found |= {f"{name}|{moment}": state[moment].cpu().clone() for moment in _MOMENTS}
            found[f"{name}|step"] = state["step"].cpu().clone()
    return found


def load_optimizer_state(optimizer: torch.optim.AdamW, names: Sequence[str], state: Mapping[str, Tensor]) -> None:
    """Copy an `optimizer_state` back.

    Raises:
        CorruptionError: moments are missing.
    """
    if not state:
        return
    for name, parameter in zip(names, optimizer.param_groups[0]["params"], strict=True):
        try:
            moments = {moment: state[f"{name}|{moment}"].to(parameter.device).clone() for moment in _MOMENTS}
            optimizer.state[parameter] = {**moments, "step": state[f"{name}|step"].clone()}
        except KeyError as error:
            raise CorruptionError(f"the checkpoint lacks {error}", "start over with --overwrite") from error
