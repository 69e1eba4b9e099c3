"""Trained weights in and out of the native transformer: coupling LoRA, export, overlay."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from stateplay_rl.errors import InputError
from stateplay_rl.worlds.native import coupling_lora
from stateplay_rl.worlds.native.keymap import TrainingLayout, from_training_names, to_training_names
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.weights import same_shape

LORA_SEED = 0
"""Seed of the LoRA A matrices: the same start in every run, so that runs differ by their data only."""


def prepare_lora(transformer: LatentStateTransformer, device: torch.device) -> None:
    """Inject the coupling LoRA unless it is there; its base weights become float32.

    Raises:
        CheckError: the coupling Linears are not what the model should have.
    """
    if not coupling_lora.is_injected(transformer):
        coupling_lora.inject(transformer, LORA_SEED)
        transformer.to(device)
    for block in transformer.blocks:
        # LoRA is merged into these on export: a bfloat16 sum would swallow small updates.
        block.latent_state_attention.float()


@torch.no_grad()
def trained_weights(
    transformer: LatentStateTransformer, trained: Collection[str], layout: TrainingLayout
) -> dict[str, Tensor]:
    """What training changed, as the checkpoint spells it, float32, on the CPU, LoRA merged.

    Args:
        transformer: with the policy's values current.
        trained: names of the trained parameters; a LoRA matrix stands for the weight that it wraps.
        layout: the checkpoint's own names and shapes: what goes out can be loaded where it came from.
    """
    renamed = to_training_names(merged_weights(transformer, trained), layout.translations)
    assert not renamed.unmatched, f"no training name for {renamed.unmatched[:3]}"
    return {name: value.reshape(()) if name in layout.scalars else value for name, value in renamed.state.items()}


def merged_weights(module: nn.Module, trained: Collection[str]) -> dict[str, Tensor]:
    """Copies of the trained weights under the module's own plain names, float32, on the CPU, LoRA merged."""
    wanted = {_plain_name(name) for name in trained}
    return {
        name: value.detach().to(device="cpu", dtype=torch.float32, copy=True)
        for name, value in coupling_lora.merged_state(module).items()
        if name in wanted
    }


def overlay_weights(
    transformer: LatentStateTransformer, weights: Mapping[str, Tensor], source: str, layout: TrainingLayout
) -> None:
    """Lay weights under training names over the transformer's own; any subset of its keys.

    Raises:
        InputError: a key is unknown or of another shape.
    """
    renamed = from_training_names(weights, layout.translations)
    lay_over(transformer, renamed.state, source, renamed.unmatched)


def require_policy_fits(shapes: Mapping[str, tuple[int, ...]], module: nn.Module, source: str) -> None:
    """Raise InputError unless every name is one of the module's, in its shape (names are the module's own)."""
    own = {name: tuple(p.shape) for name, p in module.named_parameters()}
    problems = [name for name in shapes if name not in own]
    problems += [
        f"{name} {list(shape)} instead of {list(own[name])}"
        for name, shape in shapes.items()
        if name in own and not same_shape(own[name], shape)
    ]
    if problems:
        raise InputError(
            f"{source}: {len(problems)} keys do not fit this world, first {problems[0]}",
            "use a policy that was exported from the same world",
        )


def lay_over(module: nn.Module, state: Mapping[str, Tensor], source: str, unmatched: Collection[str] = ()) -> None:
    """Replace parameters by a policy's values, each kept in the policy's own precision.

    A policy is float32. Rounded to a bfloat16 world's weights it would be another policy, with another hash
    than the run that exported it.

    Raises:
        InputError: a key is unknown or of another shape; nothing was changed.
    """
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    require_policy_fits({**dict.fromkeys(unmatched, ()), **shapes}, module, source)
    own = dict(module.named_parameters())
    for name, value in state.items():
        parameter = own[name]
        dtype = torch.promote_types(parameter.dtype, value.dtype)
        parameter.data = value.to(device=parameter.device, dtype=dtype, copy=True).reshape(parameter.shape)


def _plain_name(name: str) -> str:
    """Name of the weight that a trained parameter changes: its own, or the one that its LoRA wraps."""
    return f"{name.partition('.lora_')[0]}.weight" if ".lora_" in name else name
