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
from stateplay_rl.errors import UsageError
from stateplay_rl.worlds.base import World
from stateplay_rl.worlds.native.blocks import LatentStateBlock
from stateplay_rl.worlds.native.world import NativeWorld


def shard_frozen(world: World, processes: Processes) -> None:
    """Spread the frozen weights of every block over the ranks; nothing to do on one rank, or when replicated.

    Args:
        world: its parameter mode is set.
        processes: `lockstep` says whether weights are sharded.

    Raises:
        UsageError: another backend's world: its blocks are not ours to spread.
    """
    if not processes.lockstep:
        return
    if not isinstance(world, NativeWorld):
        raise UsageError(
            "parallel.strategy sharded needs the native backend",
            "--set parallel.strategy=replicated",
        )
    # Compiled blocks with gathered weights have not been tried on GPUs: sharded training runs uncompiled.
    world.transformer.run_uncompiled()
    mesh = init_device_mesh(processes.device.type, (processes.count,))
    for block in world.transformer.blocks:
        assert isinstance(block, LatentStateBlock), "the native transformer's own blocks"
        whole = _kept_whole(block)
        if any(parameter not in whole for parameter in block.parameters()):
            sharded = fully_shard(block, mesh=mesh, reshard_after_forward=True, ignored_params=whole)
            # Gathered once here: a first time under inference mode (sampling) would spoil the buffers for training.
            sharded.unshard()
            sharded.reshard()


def _kept_whole(block: LatentStateBlock) -> set[nn.Parameter]:
    """What is read outside of the block's forward, or trained.

    The text's keys and values are made once per condition, apart from the forward; the coupling is what its LoRA is
    merged into when a policy is exported.
    """
    apart: list[nn.Module] = [block.attn2.to_k, block.attn2.to_v, block.attn2.norm_k]
    if block.latent_state_attention is not None:
        apart.append(block.latent_state_attention)
    whole = {parameter for module in apart for parameter in module.parameters()}
    return whole | {parameter for parameter in block.parameters() if parameter.requires_grad}
