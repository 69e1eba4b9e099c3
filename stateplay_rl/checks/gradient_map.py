"""Which parameters get a gradient in each mode, on the tiny world; the facts that training relies on.

* A mode's parameters all get a finite gradient, and nothing else gets one.
* Module B gets its gradient through the frozen trunk; with the coupling gates closed it gets exactly none.
* The transition cross-entropy of the first step gives module B no gradient, later steps do; with only the
  coupling trained it is a constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from stateplay_rl.checks import tiny_world
from stateplay_rl.checks.lines import require
from stateplay_rl.nft.flow_matching import transition_cross_entropy
from stateplay_rl.nft.randomness import DrawKey, normal
from stateplay_rl.worlds.base import ParameterMode
from stateplay_rl.worlds.native import coupling_lora, modes
from stateplay_rl.worlds.native.transformer import LatentStateTransformer

SLOTS = 4
MODES: tuple[ParameterMode, ...] = ("transition", "coupling", "joint")


def prepared(
    mode: ParameterMode, gate: float = tiny_world.OPEN_GATE
) -> tuple[LatentStateTransformer, dict[str, nn.Parameter]]:
    """A tiny model in a mode, and its trained parameters by name, requiring gradients."""
    model = tiny_world.tiny_transformer(gate=gate)
    if mode in ("coupling", "joint"):
        coupling_lora.inject(model, seed=0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".lora_B." in name:  # starts at 0, where A's gradient vanishes
                    parameter.copy_(0.1 * normal(DrawKey(0, "tiny_lora", condition=name), parameter.shape))
    model.requires_grad_(False)
    trained = {
        name: parameter
        for group in modes.trained_groups(model, mode)
        for name, parameter in zip(group.names, group.parameters, strict=True)
    }
    for parameter in trained.values():
        parameter.requires_grad_(True)
    return model, trained


def velocity_gradients(model: LatentStateTransformer) -> dict[str, Tensor]:
    """Gradients by name of a sum over the velocity after slot 0; parameters without one are left out."""
    conditions = tiny_world.tiny_conditions(2, SLOTS)
    x = normal(DrawKey(0, "tiny_x"), tiny_world.latent_shape(2, SLOTS))
    velocity = tiny_world.velocity(model, x, torch.tensor([0.3, 0.9]), conditions)
    require(velocity.requires_grad, "the velocity carries no gradient at all")
    torch.autograd.backward([velocity[:, :, 1:].square().sum()])
    return _collect(model)


def transition_gradients(model: LatentStateTransformer, slots: int) -> dict[str, Tensor]:
    """Gradients by name of the transition cross-entropy over `slots` latent slots."""
    conditions = tiny_world.tiny_conditions(2, slots)
    low, _ = model.state_sequence(conditions.first_latent_BC1HW, conditions.action_bins_BfK)
    logits = model.transition_logits(low, conditions.action_bins_BfK)
    if logits.requires_grad:
        codes = torch.zeros(logits.shape[:-1], dtype=torch.int64)
        torch.autograd.backward([transition_cross_entropy(logits, codes).sum()])
    return _collect(model)


def _collect(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def _norm(gradients: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))


def describe_gradient_map() -> str:
    """Check the facts of this module.

    Returns:
        One phrase a mode, with the number of parameters and the gradient's norm.

    Raises:
        CheckError: a fact does not hold; the mode and the parameter are named.
    """
    phrases = []
    for mode in MODES:
        model, trained = prepared(mode)
        gradients = velocity_gradients(model)
        missing, extra = sorted(trained.keys() - gradients.keys()), sorted(gradients.keys() - trained.keys())
        require(not missing, f"mode {mode}: no gradient reaches {missing[:3]}")
        require(not extra, f"mode {mode}: frozen parameters get a gradient: {extra[:3]}")
        for name, value in gradients.items():
            require(bool(torch.isfinite(value).all()), f"mode {mode}: gradient of {name} is not finite")
            # A key's bias shifts all logits of a query alike: its gradient is 0 up to rounding.
            if value.dim() > 1:
                require(bool((value != 0).any()), f"mode {mode}: gradient of {name} is exactly 0")
        phrases.append(f"{mode} {sum(p.numel() for p in trained.values())} parameters, norm {_norm(gradients):.2g}")
    closed, _ = prepared("transition", gate=0.0)
    require(_norm(velocity_gradients(closed)) == 0.0, "with closed gates module B still gets a gradient")
    first, _ = prepared("transition")
    require(_norm(transition_gradients(first, 2)) == 0.0, "the first step's cross-entropy reaches module B")
    require(_norm(transition_gradients(first, 3)) > 0.0, "later steps' cross-entropy does not reach module B")
    coupling, _ = prepared("coupling")
    require(not transition_gradients(coupling, 3), "the cross-entropy is no constant in mode coupling")
    return "; ".join(phrases)
