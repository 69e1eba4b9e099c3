"""Seeded initialisation for training from scratch: one table of rules, every parameter covered."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor, nn

Rule = Callable[[Tensor, torch.Generator], object]


def _xavier(p: Tensor, g: torch.Generator) -> None:
    nn.init.xavier_uniform_(p.flatten(1), generator=g)


def _normal(std: float) -> Rule:
    return lambda p, g: nn.init.normal_(p, std=std, generator=g)


def _fill(value: float) -> Rule:
    return lambda p, _: p.fill_(value)


# First match wins. As in the public Wan code: zero output head, narrow time and text embedders, modulation of
# deviation dim^-0.5, Xavier elsewhere. Gates start at 0, so a fresh coupling leaves the backbone untouched.
RULES: tuple[tuple[str, Rule], ...] = (
    (r"(^|\.)gate$", _fill(0.0)),
    (r"(^|\.)scale_shift_table$", lambda p, g: nn.init.normal_(p, std=p.shape[-1] ** -0.5, generator=g)),
    (r"(^|\.)proj_out\.weight$", _fill(0.0)),
    (r"\.(time_embedder|text_embedder)\..*\.weight$", _normal(0.02)),
    # A small first step keeps the recursion near the identity, yet passes gradient from the start.
    (r"(^|\.)delta\.weight$", _normal(0.02)),
    (r"(^|\.)(queries|pair_role)$", _normal(1.0)),
    (r"(^|\.)norm\w*\.weight$", _fill(1.0)),
    (r"\.weight$", _xavier),
    (r"\.bias$", _fill(0.0)),
)


def initialise(module: nn.Module, seed: int) -> None:
    """Overwrite every parameter of `module` (on the CPU) from one generator, in name order.

    Raises:
        ValueError: a parameter that no rule covers.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            rule = next((rule for pattern, rule in RULES if re.search(pattern, name)), None)
            if rule is None:
                raise ValueError(f"no initialisation rule for parameter {name}")
            rule(parameter, generator)
