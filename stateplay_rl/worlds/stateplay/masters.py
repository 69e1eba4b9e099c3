"""Float32 weights inside a bfloat16 model that knows nothing of them.

Trained weights are float32: small updates vanish in bfloat16. The checkout's code multiplies its bfloat16
activations with whatever `module.weight` is, so while a module runs, its float32 parameters appear as casts of
themselves; the cast is part of the graph and passes the gradient on. The hooks belong to the modules, so a
recomputation in the backward pass sees the same casts.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

_MARK = "_sprl_cast"


def cast_on_use(model: nn.Module, compute_dtype: torch.dtype) -> None:
    """Hook every module that owns float32 parameters and runs in `compute_dtype`; may be called again.

    LoRA factors stay as they are: peft casts their inputs and results itself.
    """
    if compute_dtype == torch.float32:
        return
    factors = {
        id(part)
        for layer in model.modules()
        if isinstance(layer, LoraLayer)
        for group in (layer.lora_A, layer.lora_B)
        for part in group.values()
    }
    for module in model.modules():
        owned = any(p is not None and p.dtype == torch.float32 for p in module._parameters.values())
        if owned and id(module) not in factors and _MARK not in module.__dict__:
            module.__dict__[_MARK] = compute_dtype
            module.register_forward_pre_hook(_show_casts)
            module.register_forward_hook(_hide_casts, always_call=True)


def _show_casts(module: nn.Module, _: Any) -> None:
    # An entry of the instance's own dictionary is found before the registered parameter of that name.
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.dtype == torch.float32:
            module.__dict__[name] = parameter.to(module.__dict__[_MARK])


def _hide_casts(module: nn.Module, _inputs: Any, _output: Any) -> None:
    for name in module._parameters:
        module.__dict__.pop(name, None)
