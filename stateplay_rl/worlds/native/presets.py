"""Sizes of the native world's networks: presets, and what a checkpoint's shapes say. No torch here.

What shapes cannot show (attention heads, FSQ levels, epsilon) is returned as *assumed*; the caller records it
in the provenance and a training command refuses it until a training config or a checkout confirms it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stateplay_rl.errors import InputError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TransformerSizes:
    """Sizes of the video backbone.

    Args:
        in_channels: latent channels C, also the velocity's channels.
        dim: token width; `heads` must divide it into head widths whose RoPE split is even.
        ffn_dim: inner width of the feed-forward network.
        freq_dim: width of the sinusoidal time encoding.
        text_dim: width of the text encoder's output.
        patch: (time, height, width) patch; time is always 1.
        buttons: columns of the action signal; 0 builds a backbone without actions.
    """

    in_channels: int
    dim: int
    heads: int
    layers: int
    ffn_dim: int
    freq_dim: int
    text_dim: int
    patch: tuple[int, int, int] = (1, 2, 2)
    eps: float = 1e-6
    buttons: int = 11

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise InputError(f"transformer sizes: dim {self.dim} is not a multiple of heads {self.heads}")
        if self.patch[0] != 1:
            raise InputError(f"transformer sizes: temporal patch {self.patch[0]} is not supported", "use 1")
        if (self.head_dim // 3) % 2 or self.head_dim % 2:
            # The public code's frequency tables do not even fit together for such a width.
            raise InputError(
                f"transformer sizes: head width {self.head_dim} has no even 3-D RoPE split",
                "use a head width whose third is even, for example 12, 24, 48 or 128",
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.heads


@dataclass(frozen=True)
class LatentStateSizes:
    """Sizes of the implicit latent state: rollout, coupling and transition predictor.

    Args:
        state_dim: C_s, width of a state token before the output projection.
        state_tokens: M, state tokens per latent slot.
        fsq_levels: levels per quantised dimension; their product is the number of codes.
        coupling_width: inner width of `latent_state_attention`.
        coupling_heads: heads of `latent_state_attention`.
        state_heads: heads of the initializer and of the transition layers.
        transition_layers: self-attention + MLP layers of module B.
        mlp_ratio: inner MLP width over `state_dim`.
    """

    state_dim: int
    state_tokens: int
    fsq_levels: tuple[int, ...]
    coupling_width: int
    coupling_heads: int = 4
    state_heads: int = 4
    transition_layers: int = 2
    mlp_ratio: int = 4

    def __post_init__(self) -> None:
        if self.state_dim % self.state_heads or self.coupling_width % self.coupling_heads:
            raise InputError(f"latent-state sizes: heads do not divide the widths in {self}")
        if self.state_dim % 4:
            raise InputError(f"latent-state sizes: state_dim {self.state_dim} is not a multiple of 4")

    @property
    def codes(self) -> int:
        """Number of transition codes."""
        return math.prod(self.fsq_levels)


@dataclass(frozen=True)
class TokenizerSizes:
    """Sizes of the frozen transition tokenizer.

    Args:
        in_channels: latent channels C.
        width: width of frame features and queries.
        state_tokens: M, codes per pair of adjacent latent frames.
        patch: spatial patch (height, width).
    """

    in_channels: int
    width: int
    heads: int
    state_tokens: int
    fsq_levels: tuple[int, ...]
    mlp_ratio: int = 2
    patch: tuple[int, int] = (2, 2)

    def __post_init__(self) -> None:
        if self.width % self.heads or self.width % 4:
            raise InputError(f"tokenizer sizes: width {self.width} must be a multiple of 4 and of the heads")


@dataclass(frozen=True)
class NativePreset:
    """One row of the preset table."""

    transformer: TransformerSizes
    latent_state: LatentStateSizes
    tokenizer: TokenizerSizes


PRESETS: dict[str, NativePreset] = {
    "stateplay-5b": NativePreset(
        TransformerSizes(48, 3072, 24, 30, 14336, 256, 4096),
        LatentStateSizes(256, 4, (8, 8, 8), 256),
        TokenizerSizes(48, 256, 4, 4, (8, 8, 8)),
    ),
    "arena": NativePreset(
        TransformerSizes(16, 120, 5, 5, 360, 64, 32),
        LatentStateSizes(64, 4, (8, 8, 8), 64, mlp_ratio=2),
        TokenizerSizes(16, 64, 4, 4, (8, 8, 8)),
    ),
}


@dataclass(frozen=True)
class InferredSizes:
    """Sizes read from a checkpoint's shapes.

    Args:
        transformer: the backbone's sizes.
        latent_state: sizes of the latent modules; None when the file holds none of them.
        assumed: field names that no shape shows (`heads`, `eps`, `fsq_levels`, ...), in order.
    """

    transformer: TransformerSizes
    latent_state: LatentStateSizes | None
    assumed: tuple[str, ...] = field(default=())


def preset(name: str) -> NativePreset:
    """The preset `name`.

    Raises:
        InputError: no such preset.
    """
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}", f"use one of {', '.join(PRESETS)}")
    return PRESETS[name]


def sizes_from_shapes(
    header: Mapping[str, Shape],
    *,
    heads: int | None = None,
    eps: float | None = None,
    fsq_levels: tuple[int, ...] | None = None,
    state_heads: int | None = None,
    coupling_heads: int | None = None,
) -> InferredSizes:
    """Infer sizes from the shapes of a checkpoint under the training repository's key names.

    Args:
        header: key name -> shape, prefixes already stripped.
        heads, eps, fsq_levels, state_heads, coupling_heads: known values; those left out are assumed from the
            preset of equal dim and layers, else from the usual head width, and listed in `assumed`.

    Raises:
        InputError: a key that the backbone needs is missing, or shapes contradict each other.
    """
    patch_weight = _shape(header, "patch_embedding.weight", 5)
    dim, in_channels = patch_weight[:2]
    layers = _count(header, r"blocks\.(\d+)\.self_attn\.q\.weight")
    twin = next((p for p in PRESETS.values() if (p.transformer.dim, p.transformer.layers) == (dim, layers)), None)
    buttons = 0
    if "action_embedders.0.weight" in header:
        embedders = _count(header, r"action_embedders\.(\d+)\.weight")
        if embedders != layers:
            raise InputError(f"checkpoint: {embedders} action embedders for {layers} blocks")
        buttons = _shape(header, "action_embedders.0.weight", 2)[1]
    assumed = [name for name, value in (("heads", heads), ("eps", eps)) if value is None]
    transformer = TransformerSizes(
        in_channels=in_channels,
        dim=dim,
        heads=heads or (twin.transformer.heads if twin else _usual_heads(dim)),
        layers=layers,
        ffn_dim=_shape(header, "blocks.0.ffn.0.weight", 2)[0],
        freq_dim=_shape(header, "time_embedding.0.weight", 2)[1],
        text_dim=_shape(header, "text_embedding.0.weight", 2)[1],
        patch=(patch_weight[2], patch_weight[3], patch_weight[4]),
        eps=1e-6 if eps is None else eps,
        buttons=buttons,
    )
    latent_state = None
    if any("latent_state" in key for key in header):
        latent_state, more = _latent_state_sizes(header, fsq_levels)
        for name, value in (("state_heads", state_heads), ("coupling_heads", coupling_heads)):
            if value is None:
                more.append(name)
        defaults = twin.latent_state if twin else latent_state
        latent_state = replace(
            latent_state,
            state_heads=state_heads or defaults.state_heads,
            coupling_heads=coupling_heads or defaults.coupling_heads,
        )
        # Neither has a shape of its own in any layout.
        assumed += [*more, "step_encoding", "visibility"]
    return InferredSizes(transformer, latent_state, tuple(assumed))


def tokenizer_sizes_from_shapes(
    header: Mapping[str, Shape], *, fsq_levels: tuple[int, ...], heads: int | None = None
) -> tuple[TokenizerSizes, tuple[str, ...]]:
    """Sizes of a tokenizer file, and the names of those that its shapes do not show.

    Args:
        header: key name -> shape of the tokenizer's state dict.
        fsq_levels: the values of its `quantizer.levels` buffer.
        heads: attention heads; assumed when left out. The 2x2 patch is always assumed.

    Raises:
        InputError: a key is missing, or shapes contradict each other.
    """
    width, inputs = _shape(header, "patch_embedding.weight", 2)
    if _shape(header, "quantizer.levels", 1) != (len(fsq_levels),) or inputs % 4:
        raise InputError(f"tokenizer: {inputs} patch inputs or FSQ levels {fsq_levels} do not fit the file")
    sizes = TokenizerSizes(
        in_channels=inputs // 4,
        width=width,
        heads=heads or 4,
        state_tokens=_shape(header, "queries", 2)[0],
        fsq_levels=fsq_levels,
        mlp_ratio=_shape(header, "decoder.0.weight", 2)[0] // width,
    )
    return sizes, ("patch",) if heads else ("heads", "patch")


def _latent_state_sizes(
    header: Mapping[str, Shape], fsq_levels: tuple[int, ...] | None
) -> tuple[LatentStateSizes, list[str]]:
    rollout = "latent_state_rollout"
    state_tokens, state_dim = _shape(header, f"{rollout}.initializer.queries", 2)
    codes = _shape(header, "transition_predictor.head.weight", 2)[0]
    assumed: list[str] = []
    if fsq_levels is None:
        assumed.append("fsq_levels")
        fsq_levels = _usual_levels(codes)
    if math.prod(fsq_levels) != codes:
        raise InputError(f"checkpoint: {codes} codes do not fit FSQ levels {fsq_levels}")
    sizes = LatentStateSizes(
        state_dim=state_dim,
        state_tokens=state_tokens,
        fsq_levels=fsq_levels,
        coupling_width=_shape(header, "blocks.0.latent_state_attention.q.weight", 2)[0],
        transition_layers=_count(header, rf"{rollout}\.transition\.layers\.(\d+)\.mlp\.0\.weight"),
        mlp_ratio=_shape(header, f"{rollout}.transition.layers.0.mlp.0.weight", 2)[0] // state_dim,
    )
    return sizes, assumed


def _shape(header: Mapping[str, Shape], key: str, rank: int) -> Shape:
    if key not in header:
        raise InputError(f"checkpoint: key {key} is missing", "run `sprl audit-ckpt` on it for the full list")
    if len(header[key]) != rank:
        raise InputError(f"checkpoint: {key} has shape {tuple(header[key])}, expected {rank} dimensions")
    return tuple(header[key])


def _count(header: Mapping[str, Shape], pattern: str) -> int:
    """Number of consecutive indices 0, 1, ... that `pattern` matches."""
    found = sorted({int(match[1]) for key in header if (match := re.fullmatch(pattern, key))})
    if not found or found != list(range(len(found))):
        raise InputError(f"checkpoint: indices {found} of {pattern} are not 0, 1, ...")
    return len(found)


def _usual_heads(dim: int) -> int:
    for head_dim in (128, 24, 48, 32, 20, 12):
        if dim % head_dim == 0:
            return dim // head_dim
    raise InputError(f"checkpoint: no usual head width divides dim {dim}", "give the number of heads")


def _usual_levels(codes: int) -> tuple[int, ...]:
    level = round(codes ** (1 / 3))
    if level**3 != codes:
        raise InputError(f"checkpoint: {codes} codes are no cube", "give the FSQ levels")
    return (level, level, level)
