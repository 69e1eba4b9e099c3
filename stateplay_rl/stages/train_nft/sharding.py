"""Frozen weights spread over the ranks (FSDP2): for models that do not fit a card.

Trained parameters stay whole on every rank: policies are switched by pointer, and gradients are added by ourselves in
float64, so the result is that of `replicated`. Each transformer block is gathered for its forward and its backward and
let go again. Every forward is then a collective: all ranks make equally many (`Processes.turns`).
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from stateplay_rl.distributed import Processes
from stateplay_rl.worlds.native.world import NativeWorld


def shard_frozen(world: NativeWorld, processes: Processes) -> None:
    """Spread the frozen weights of every block over the ranks; nothing to do on one rank, or when replicated.

    Args:
        world: its parameter mode is set.
        processes: `lockstep` says whether weights are sharded.
    """
    if not processes.lockstep:
        return
    mesh = init_device_mesh(processes.device.type, (processes.count,))
    for block in world.transformer.blocks:
        whole = _kept_whole(block)
        if any(parameter not in whole for parameter in block.parameters()):
            fully_shard(block, mesh=mesh, reshard_after_forward=True, ignored_params=whole)


def _kept_whole(block: nn.Module) -> set[nn.Parameter]:
    """Trained parameters, and the coupling that its LoRA is merged into when a policy is exported."""
    coupling = getattr(block, "latent_state_attention", None)
    inside = set() if coupling is None else set(coupling.parameters())
    return inside | {parameter for parameter in block.parameters() if parameter.requires_grad}
