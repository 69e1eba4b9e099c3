"""Trained weights in and out of the native transformer: coupling LoRA, export, overlay."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from stateplay_rl.errors import InputError
from stateplay_rl.worlds.native import coupling_lora
from stateplay_rl.worlds.native.keymap import from_training_names, to_training_names
from stateplay_rl.worlds.native.transformer import LatentStateTransformer

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
def trained_weights(transformer: LatentStateTransformer, trained: Collection[str]) -> dict[str, Tensor]:
    """What training changed, under the training repository's key names, float32, on the CPU, LoRA merged.

    Args:
        transformer: with the policy's values current.
        trained: names of the trained parameters; a LoRA matrix stands for the weight that it wraps.
    """
    wanted = {_plain_name(name) for name in trained}
    merged = coupling_lora.merged_state(transformer)
    chosen = {
        name: value.detach().to(device="cpu", dtype=torch.float32, copy=True)
        for name, value in merged.items()
        if name in wanted
    }
    renamed = to_training_names(chosen)
    assert not renamed.unmatched, f"no training name for {renamed.unmatched[:3]}"
    return renamed.state


def overlay_weights(transformer: LatentStateTransformer, weights: Mapping[str, Tensor], source: str) -> None:
    """Copy weights under training names over the transformer's own; any subset of its keys.

    Raises:
        InputError: a key is unknown or of another shape.
    """
    renamed = from_training_names(weights)
    own = transformer.state_dict()
    problems = [*renamed.unmatched, *(name for name in renamed.state if name not in own)]
    problems += [name for name, v in renamed.state.items() if name in own and own[name].shape != v.shape]
    if problems:
        raise InputError(
            f"{source}: {len(problems)} keys do not fit this world, first {problems[0]}",
            "use a policy that was exported from the same world",
        )
    with torch.no_grad():
        for name, value in renamed.state.items():
            own[name].copy_(value)


def _plain_name(name: str) -> str:
    """Name of the weight that a trained parameter changes: its own, or the one that its LoRA wraps."""
    return f"{name.partition('.lora_')[0]}.weight" if ".lora_" in name else name
