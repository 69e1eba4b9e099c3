"""Diffusers' first-block cache on the native transformer.

The hooks look for a block's input under the name `hidden_states`; ours calls it something else, so its class is
registered with the position instead. Of diffusers' other caches: TaylorSeer's default patterns match no module of a Wan
transformer, and its lite mode is `nft.samplers.TaylorCache`, without hooks; FasterCache saves on the unconditional
branch, which a model sampled without guidance has not; it and Pyramid Attention Broadcast hook the attention modules'
forward, which our blocks pass by; MagCache needs ratios measured on the very model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from diffusers.hooks import FirstBlockCacheConfig
from diffusers.hooks._helpers import TransformerBlockMetadata, TransformerBlockRegistry
from diffusers.models.cache_utils import CacheMixin

from stateplay_rl.worlds.native.blocks import LatentStateBlock


@contextmanager
def first_block_cache(transformer: CacheMixin, threshold: float) -> Iterator[None]:
    """Hooks on all blocks for one trajectory, gone afterwards; one decision a call, for all its rows together.

    A block that was compiled is compiled again with its hook, and each decision waits for the device: what is saved
    must be measured.

    Args:
        transformer: a `LatentStateTransformer`.
        threshold: mean absolute change of the first block's effect, relative to its mean size, from which all run.
    """
    TransformerBlockRegistry.register(
        LatentStateBlock,
        TransformerBlockMetadata(return_hidden_states_index=0, _cached_parameter_indices={"hidden_states": 0}),
    )
    transformer.enable_cache(FirstBlockCacheConfig(threshold=threshold))
    try:
        with transformer.cache_context("sampling"):
            yield
    finally:
        transformer.disable_cache()
