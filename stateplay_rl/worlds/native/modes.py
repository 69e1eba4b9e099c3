"""Which parameters each mode trains: named, audited lists; everything else stays frozen.

`transition` is module B alone, `coupling` the coupling LoRA alone, `joint` both; `full` is every parameter of
the transformer with its latent modules, without LoRA (arena's own mode).
"""

from __future__ import annotations

from torch import nn

from stateplay_rl.errors import CheckError, UsageError
from stateplay_rl.worlds.base import ParameterGroup, ParameterMode
from stateplay_rl.worlds.native import coupling_lora

TRANSITION_PREFIX = "latent_state_rollout.transition."
_FULL_GROUPS = (
    ("transition", (TRANSITION_PREFIX,)),
    ("state", ("latent_state_rollout.",)),
    ("predictor", ("transition_predictor.", "latent_state_predictor.")),
)


def trained_names(model: nn.Module, mode: ParameterMode) -> dict[str, tuple[str, ...]]:
    """Group name -> parameter names that `mode` trains, in the model's order.

    `coupling` and `joint` need the LoRA injected first (`coupling_lora.inject`); the others refuse it where
    it would hide weights that they train.

    Raises:
        CheckError: the model lacks the modules that the mode trains, or carries LoRA in mode `full`.
        UsageError: unknown mode.
    """
    names = [name for name, _ in model.named_parameters()]
    if not any(name.startswith(TRANSITION_PREFIX) for name in names):
        raise CheckError(f"mode {mode}: the model has no latent-state modules", "check the world's sizes")
    if mode == "full":
        if coupling_lora.is_injected(model):
            raise CheckError("mode full: the model carries coupling LoRA", "build the model without it")
        return _full_groups(names)
    groups: dict[str, tuple[str, ...]] = {}
    if mode not in ("transition", "coupling", "joint"):
        raise UsageError(f"unknown parameter mode {mode!r}", "use transition, coupling, joint or full")
    if mode in ("transition", "joint"):
        groups["transition"] = tuple(name for name in names if name.startswith(TRANSITION_PREFIX))
    if mode in ("coupling", "joint"):
        coupling_lora.check_injection(model, coupling_lora.block_count(model))
        groups["coupling_lora"] = coupling_lora.lora_parameter_names(model)
    return groups


def trained_groups(model: nn.Module, mode: ParameterMode) -> tuple[ParameterGroup, ...]:
    """The groups of `trained_names` with their parameters; `requires_grad` is not touched.

    Raises:
        CheckError, UsageError: as `trained_names`.
    """
    parameters = dict(model.named_parameters())
    return tuple(
        ParameterGroup(group, names, tuple(parameters[name] for name in names))
        for group, names in trained_names(model, mode).items()
    )


def _full_groups(names: list[str]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {group: [] for group in ("backbone", "coupling", "transition", "state", "predictor")}
    for name in names:
        group = next((g for g, prefixes in _FULL_GROUPS if name.startswith(prefixes)), "backbone")
        if ".latent_state_attention." in name:
            group = "coupling"
        groups[group].append(name)
    return {group: tuple(members) for group, members in groups.items()}
