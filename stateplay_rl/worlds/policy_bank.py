"""live, old and reference parameter sets over one module; switching moves pointers, never data.

Autograd keeps a leaf parameter by reference, not by value: a switch between a forward and the end of its
backward (recomputation of checkpointed blocks included) would silently mix two policies. So a forward with
gradients needs an open `live_window`, and inside the window every switch raises.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from stateplay_rl.errors import CorruptionError, InputError, UsageError
from stateplay_rl.worlds.base import PolicyName

POLICIES: tuple[PolicyName, ...] = ("live", "old", "reference")


def sha256_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Content hash of named tensors: names in order, shapes, float32 bytes (little-endian)."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().to(device="cpu", dtype=torch.float32).contiguous()
        digest.update(f"{name}:{list(value.shape)};".encode())
        digest.update(value.numpy().astype("<f4", copy=False).tobytes())
    return digest.hexdigest()


class PolicyBank:
    """The trained parameters of a world, three times; everything else exists once.

    Args:
        trained: name -> parameter, float32, requiring gradients. The parameter's current values become live,
            old and reference.
        frozen: all other parameters of the world; must not require gradients, checked after every switch.

    Raises:
        ValueError: a trained parameter is not float32, or a `requires_grad` flag is wrong.
    """

    def __init__(self, trained: Mapping[str, nn.Parameter], frozen: Iterable[nn.Parameter] = ()) -> None:
        for name, parameter in trained.items():
            if parameter.dtype != torch.float32:
                raise ValueError(f"trained parameter {name} is {parameter.dtype}; masters must be float32")
        self._parameters = dict(trained)
        self._frozen = tuple(frozen)
        self._sets: dict[PolicyName, dict[str, Tensor]] = {
            "live": {name: parameter.data for name, parameter in trained.items()},
            "old": {name: parameter.data.clone() for name, parameter in trained.items()},
            "reference": {name: parameter.data.clone() for name, parameter in trained.items()},
        }
        self._current: PolicyName = "live"
        self._windows = 0
        self.reference_sha256 = self.sha256("reference")
        self._assert_separate()
        self._assert_flags()

    @property
    def current(self) -> PolicyName:
        """The policy that a forward would use now."""
        return self._current

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trained parameters."""
        return tuple(self._parameters)

    @contextmanager
    def use(self, policy: PolicyName) -> Iterator[None]:
        """Make `policy` current inside the block; blocks may be nested.

        Raises:
            RuntimeError: a live window is open.
        """
        self._refuse_in_window(f"use({policy!r})")
        before = self._current
        self._switch(policy)
        try:
            yield
        finally:
            self._switch(before)

    @contextmanager
    def live_window(self) -> Iterator[None]:
        """From a live forward to the end of its backward; windows may be nested.

        Raises:
            RuntimeError: another policy is current.
        """
        if self._current != "live":
            raise RuntimeError(f"live_window() inside use({self._current!r}): gradients belong to live only")
        self._windows += 1
        try:
            yield
        finally:
            self._windows -= 1

    def check_forward(self) -> None:
        """Called before every forward: with gradients enabled it must be inside a live window.

        Raises:
            RuntimeError: gradients are enabled and no live window is open.
        """
        if self._parameters and torch.is_grad_enabled() and not self._windows:
            raise RuntimeError(
                f"forward of the {self._current} policy with gradients outside a live_window(): "
                "open the window, or use torch.no_grad()"
            )

    def sha256(self, policy: PolicyName) -> str:
        """Content hash of the trained parameters (names, shapes, float32 bytes)."""
        return sha256_tensors(self._sets[policy])

    def verify_reference(self) -> None:
        """Compare the reference with its hash at creation.

        Raises:
            CorruptionError: it changed.
        """
        found = self.sha256("reference")
        if found != self.reference_sha256:
            raise CorruptionError(
                f"the reference policy changed: {found[:12]} instead of {self.reference_sha256[:12]}",
                "something wrote to the reference in place: stop and resume from the last checkpoint",
            )

    def state(self, policy: PolicyName) -> dict[str, Tensor]:
        """Copies of the trained parameters, float32, on the CPU."""
        return {name: value.detach().to("cpu", copy=True) for name, value in self._sets[policy].items()}

    def load(self, policy: PolicyName, state: Mapping[str, Tensor]) -> None:
        """Overwrite `live` or `old` in place (the optimizer keeps its references).

        Raises:
            UsageError: `policy` is `reference`.
            InputError: missing, unexpected or wrongly shaped names.
            RuntimeError: a live window is open.
        """
        if policy == "reference":
            raise UsageError("the reference policy is immutable", "load live or old")
        self._refuse_in_window(f"load({policy!r})")
        own = self._sets[policy]
        problems = sorted(
            [f"{name} is missing" for name in own.keys() - state.keys()]
            + [f"{name} is unexpected" for name in state.keys() - own.keys()]
            + [
                f"{name} is {list(state[name].shape)} instead of {list(own[name].shape)}"
                for name in own.keys() & state.keys()
                if own[name].shape != state[name].shape
            ]
        )
        if problems:
            raise InputError(
                f"policy {policy}: {len(problems)} parameters do not fit: " + "; ".join(problems[:5]),
                "use a policy of the same world and parameter mode",
            )
        for name, value in state.items():
            own[name].copy_(value)

    @torch.no_grad()
    def update_old(self, weight_on_old: float) -> None:
        """old <- weight_on_old * old + (1 - weight_on_old) * live, in float32 and in place.

        Raises:
            ValueError: the weight is outside [0, 1].
            RuntimeError: a live window is open.
        """
        if not 0.0 <= weight_on_old <= 1.0:
            raise ValueError(f"weight_on_old {weight_on_old} is outside [0, 1]")
        self._refuse_in_window("update_old()")
        for name, old in self._sets["old"].items():
            old.mul_(weight_on_old).add_(self._sets["live"][name], alpha=1.0 - weight_on_old)

    def distance(self, left: PolicyName, right: PolicyName) -> float:
        """Euclidean distance of two parameter sets, summed in float64."""
        squared = 0.0
        for name, value in self._sets[left].items():
            squared += float((value.detach().double() - self._sets[right][name].double()).square().sum())
        return math.sqrt(squared)

    def _switch(self, policy: PolicyName) -> None:
        values = self._sets[policy]
        for name, parameter in self._parameters.items():
            # A moved or re-cast module would leave the optimizer and the bank with different tensors.
            if parameter.data_ptr() != self._sets[self._current][name].data_ptr():
                raise RuntimeError(f"parameter {name} was replaced outside the policy bank")
            parameter.data = values[name]
        self._current = policy
        self._assert_flags()

    def _refuse_in_window(self, action: str) -> None:
        if self._windows:
            raise RuntimeError(
                f"{action} inside an open live window: the backward would mix two policies; finish the backward first"
            )

    def _assert_separate(self) -> None:
        for name in self._parameters:
            pointers = {self._sets[policy][name].data_ptr() for policy in POLICIES}
            if self._sets["live"][name].numel() and len(pointers) != len(POLICIES):
                raise ValueError(f"parameter {name}: live, old and reference share storage")

    def _assert_flags(self) -> None:
        for name, parameter in self._parameters.items():
            if not parameter.requires_grad:
                raise ValueError(f"trained parameter {name} lost requires_grad")
        if any(parameter.requires_grad for parameter in self._frozen):
            raise ValueError("a frozen parameter requires gradients")
