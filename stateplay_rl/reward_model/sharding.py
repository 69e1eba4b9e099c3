"""The frozen base in shares on all ranks (FSDP2), for cards on which it leaves too little room.

Only the decoder layers' frozen weights are shared out; they are gathered layer by layer. The adapter, the embeddings
and the vision tower stay whole on every rank, so adapters, gradients and checkpoints are those of the unsharded run.
"""

from __future__ import annotations

from typing import Any

from stateplay_rl.errors import UsageError
from stateplay_rl.reward_model.language import plain_model


def shard_base(model: Any, world_size: int) -> None:
    """Share out the decoder layers of a PEFT model; the process group must have been started.

    From now on every rank must run the same passes in the same order.

    Raises:
        UsageError: one process only, or a 4-bit base.
    """
    if world_size < 2:
        raise UsageError(
            "sharding fsdp2 shares the base among several processes, there is one",
            "start with accelerate launch, or use --set compute.sharding=none",
        )
    from torch.distributed.fsdp import fully_shard

    for layer in plain_model(model).model.language_model.layers:
        frozen = [p for p in layer.parameters() if not p.requires_grad]
        if any(not p.is_floating_point() for p in frozen):
            raise UsageError("a 4-bit base cannot be sharded", "use precision bfloat16 with fsdp2")
        adapter = {p for name, p in layer.named_parameters() if ".lora_" in name}
        fully_shard(layer, ignored_params=adapter)
