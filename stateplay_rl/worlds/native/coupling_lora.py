"""LoRA on exactly the `q, k, v, out` Linears of every `latent_state_attention`, through peft."""

from __future__ import annotations

import math
from collections import Counter

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from stateplay_rl.errors import CheckError

RANK = 8
ALPHA = 16
KINDS = ("q", "k", "v", "out")
ADAPTER = "default"


def target_names(model: nn.Module) -> tuple[str, ...]:
    """Exact module names of the coupling Linears, in block order."""
    return tuple(f"blocks.{n}.latent_state_attention.{kind}" for n in range(block_count(model)) for kind in KINDS)


def block_count(model: nn.Module) -> int:
    """Number of transformer blocks, by their names: any model that calls them `blocks.N` will do."""
    return len({name.split(".")[1] for name, _ in model.named_parameters() if name.startswith("blocks.")})


def inject(model: nn.Module, seed: int, rank: int = RANK, alpha: int = ALPHA) -> tuple[str, ...]:
    """Wrap the coupling Linears in place; B starts at 0, so the function does not change.

    No `requires_grad` flag of an existing parameter changes either.

    Args:
        model: a transformer with latent-state modules and without adapters.
        seed: of the A matrices, which come from an own generator and not from the global one.

    Returns:
        names of the LoRA parameters.

    Raises:
        CheckError: an adapter is already there, or the number of wrapped Linears of a kind is wrong.
    """
    if is_injected(model):
        raise CheckError("coupling LoRA: an adapter is already injected", "build the model anew")
    targets = target_names(model)
    present = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    missing = sorted(set(targets) - present)
    if missing or not targets:
        raise CheckError(
            f"coupling LoRA: {len(missing)} of {len(targets)} Linears are missing, first {missing[:1]}",
            "the model must be built with latent-state sizes",
        )
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", target_modules=list(targets))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.random.fork_rng(devices=[]):  # peft draws from the global generator; leave that as it was
        inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    for parameter in trained:  # and it freezes all else; that is the caller's decision
        parameter.requires_grad_(True)
    check_injection(model, block_count(model))
    layers = dict(_lora_layers(model))
    generator = torch.Generator("cpu").manual_seed(seed)
    with torch.no_grad():
        for name in sorted(layers):
            weight = layers[name].lora_A[ADAPTER].weight
            if weight.is_meta:
                continue
            drawn = torch.empty(weight.shape)
            nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
            weight.copy_(drawn)
            nn.init.zeros_(layers[name].lora_B[ADAPTER].weight)
    return lora_parameter_names(model)


def check_injection(model: nn.Module, blocks: int) -> None:
    """Raise CheckError unless every kind of coupling Linear is wrapped once a block, and nothing else is."""
    names = [name for name, _ in _lora_layers(model)]
    counts = Counter(name.rpartition(".")[2] for name in names)
    expected = dict.fromkeys(KINDS, blocks)
    if blocks == 0 or counts != expected or set(names) != set(target_names(model)):
        raise CheckError(f"coupling LoRA: wrapped {dict(counts)}, expected {expected}")


def is_injected(model: nn.Module) -> bool:
    """Whether any Linear of the model carries an adapter."""
    return bool(_lora_layers(model))


def lora_parameter_names(model: nn.Module) -> tuple[str, ...]:
    """Names of all LoRA A and B matrices, in the model's order."""
    marks = (f".lora_A.{ADAPTER}.", f".lora_B.{ADAPTER}.")
    return tuple(name for name, _ in model.named_parameters() if any(mark in name for mark in marks))


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The whole state under plain names, with W + (alpha / r) B A in place of the wrapped weights.

    The sum is taken and kept in float32: in bfloat16 it would swallow small updates. The model is not changed.
    """
    layers = dict(_lora_layers(model))
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if ".lora_A." in name or ".lora_B." in name:
            continue
        module_name, wrapped, leaf = name.partition(".base_layer.")
        if not wrapped:
            state[name] = tensor
            continue
        if leaf == "weight":
            layer = layers[module_name]
            up, down = layer.lora_B[ADAPTER].weight, layer.lora_A[ADAPTER].weight
            delta = (up.float() @ down.float()) * layer.scaling[ADAPTER]
            tensor = (tensor.float() + delta).detach()
        state[f"{module_name}.{leaf}"] = tensor
    return state


def _lora_layers(model: nn.Module) -> list[tuple[str, LoraLayer]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]
