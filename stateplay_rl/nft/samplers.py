"""Samplers by name: a rule that follows the flow ODE, and how often the model is really asked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from stateplay_rl.nft.multistep import AdamsBashforth2, DpmSolver2M
from stateplay_rl.nft.solvers import Euler, RuleOf, VelocityFn
from stateplay_rl.nft.unipc import UniPC

SOLVERS: Mapping[str, RuleOf] = {
    "euler": Euler,
    "ab2": AdamsBashforth2,
    "dpm2m": DpmSolver2M,
    "unipc2": partial(UniPC, order=2),
    "unipc3": partial(UniPC, order=3),
}
"""Every rule under the name that records and options use."""

WARM_UP_STEPS = 3
"""Steps at the start that the Taylor cache never predicts; the public default."""


class TaylorCache:
    """A velocity that is computed on some steps of one trajectory and extrapolated linearly on the others.

    TaylorSeer (arXiv 2503.06923) of order 1 on the model's last layer, as diffusers' hook in its lite mode: after three
    computed steps one of every `every` is computed, the others follow the line through the last two computed ones,
    counted in steps. The last layer and the way from tokens to latents are linear, so extrapolating the velocity itself
    is the same. It needs no hooks: any world's velocity will do, compiled blocks stay compiled, the host never waits,
    and a sample does not depend on its batch.

    Args:
        velocity_fn: the model.
        every: 2 or more; one step of so many is computed.

    Raises:
        ValueError: `every` below 2, which would cache nothing.
    """

    def __init__(self, velocity_fn: VelocityFn, every: int) -> None:
        if every < 2:
            raise ValueError(f"one step of {every} is every step: give 2 or more")
        self._velocity_fn, self._every = velocity_fn, every
        self._step, self._computed_at = -1, -1
        self._value: Tensor | None = None
        self._slope: Tensor | None = None

    def __call__(self, x: Tensor, sigma_B: Tensor) -> Tensor:
        """See `VelocityFn`; call once a step, in order."""
        self._step += 1
        if self._value is None or is_computed(self._step, self._every):
            return self._compute(x, sigma_B)
        value = self._value.clone() if self._slope is None else self._value + self._slope * self._offset()
        return value

    def _offset(self) -> int:
        return self._step - self._computed_at

    def _compute(self, x: Tensor, sigma_B: Tensor) -> Tensor:
        velocity = self._velocity_fn(x, sigma_B)
        if self._value is not None:
            self._slope = (velocity - self._value) / self._offset()
        self._value, self._computed_at = velocity, self._step
        return velocity


def is_computed(step: int, every: int) -> bool:
    """Whether the Taylor cache asks the model on this step, counted from 0."""
    return step < WARM_UP_STEPS or (step - WARM_UP_STEPS - 1) % every == 0


def evaluations(steps: int, every: int | None) -> int:
    """Model evaluations of one trajectory of `steps` steps; `every` is None without a Taylor cache."""
    return steps if every is None else sum(is_computed(step, every) for step in range(steps))
