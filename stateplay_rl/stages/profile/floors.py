"""Seconds that a piece of work cannot fall below: its products at the machine's ceilings, nothing else counted.

Shapes: N video tokens, f latent slots, D width, F inner width of the feed-forward network, L text tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from stateplay_rl.stages.profile.ceilings import TERA, Ceilings
from stateplay_rl.worlds.native.presets import LatentStateSizes, TransformerSizes
from stateplay_rl.worlds.native.vae import VaeArchitecture, VideoVae


@dataclass(frozen=True)
class TransformerWork:
    """Floating-point operations of one forward (a product counts two), without what a condition needs once.

    Args:
        products: of all Linears, TFLOP.
        attention: of self-attention, TFLOP.
        cross: of text attention and coupling, TFLOP.
        layers: number of blocks.
    """

    products: float
    attention: float
    cross: float
    layers: int


def transformer_work(
    sizes: TransformerSizes, state: LatentStateSizes, slots: int, tokens_per_slot: int, text_tokens: int
) -> TransformerWork:
    """Counted from the sizes: text keys and values, state sequence and time embedding are left out."""
    tokens, dim, states = slots * tokens_per_slot, sizes.dim, slots * state.state_tokens
    # Four projections of self-attention, query and output of text attention, two of the feed-forward network.
    weights = 6 * dim**2 + 2 * dim * sizes.ffn_dim
    coupling = 2 * dim * state.coupling_width * (tokens + states)
    return TransformerWork(
        products=2.0 * sizes.layers * (tokens * weights + coupling) / TERA,
        attention=4.0 * sizes.layers * tokens**2 * dim / TERA,
        cross=4.0 * sizes.layers * tokens * (text_tokens * dim + states * state.coupling_width) / TERA,
        layers=sizes.layers,
    )


@dataclass(frozen=True)
class Floors:
    """Seconds of the transformer's work at the ceilings.

    Args:
        forward: one forward.
        both: forward and backward to the inputs, weights frozen: no product of a weight's gradient.
    """

    forward: float
    both: float

    @classmethod
    def of(cls, work: TransformerWork, ceilings: Ceilings) -> Floors:
        """From counted work and measured rates; attention by the fastest backend."""
        best = ceilings.attention[ceilings.fastest]
        products = work.products / ceilings.matmul_tflops
        cross = work.cross / best.forward_tflops
        return cls(
            forward=products + cross + work.layers * best.forward_seconds,
            both=2 * products + 3.5 * cross + work.layers * best.both_seconds,
        )

    @property
    def checkpointed(self) -> float:
        """Forward and backward with every block's forward once more."""
        return self.both + self.forward


def vae_work(architecture: VaeArchitecture, slots: int, height: int, width: int) -> tuple[float, float]:
    """TFLOP of decoding and of encoding one video by the library's graph, counted on the meta device.

    Args:
        height, width: latent grid.
    """
    with torch.device("meta"):
        model: Any = VideoVae(architecture).model
    latents = torch.empty(1, architecture.z_dim, slots, height, width, device="meta")
    factor = architecture.spatial_factor
    video = torch.empty(1, 3, 4 * (slots - 1) + 1, height * factor, width * factor, device="meta")
    counts = []
    with torch.no_grad():
        for work in (lambda: model.decode(latents), lambda: model.encode(video)):
            with FlopCounterMode(display=False) as counter:
                work()  # type: ignore[no-untyped-call]
            counts.append(counter.get_total_flops() / TERA)
    return counts[0], counts[1]
