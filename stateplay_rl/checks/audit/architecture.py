"""The architecture that a checkpoint's shapes show, next to the one that the world description names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from stateplay_rl.checks.audit.coverage import Placed
from stateplay_rl.checks.audit.expected import TRANSFORMER
from stateplay_rl.worlds.native.presets import NativePreset

# Setting -> (name pattern, axis) in order of preference. A scoped file shows some of them only.
_FROM_SHAPES: Mapping[str, tuple[tuple[str, int], ...]] = {
    "in_channels": ((r"patch_embedding\.weight", 1),),
    "dim": (
        (r"patch_embedding\.weight", 0),
        (r"action_embedders\.0\.weight", 0),
        (r"blocks\.\d+\.latent_state_attention\.q\.weight", 1),
        (r"latent_state_rollout\.output_projection\.weight", 0),
        (r"blocks\.\d+\.self_attn\.q\.weight", 0),
    ),
    "ffn_dim": ((r"blocks\.\d+\.ffn\.0\.weight", 0),),
    "freq_dim": ((r"time_embedding\.0\.weight", 1),),
    "text_dim": ((r"text_embedding\.0\.weight", 1),),
    "buttons": (
        (r"action_embedders\.0\.weight", 1),
        (r"latent_state_rollout\.transition\.action_embedding\.weight", 1),
    ),
    "state_dim": (
        (r"latent_state_rollout\.initializer\.queries", 1),
        (r"latent_state_rollout\.output_projection\.weight", 1),
    ),
    "state_tokens": ((r"latent_state_rollout\.initializer\.queries", 0),),
    "coupling_width": ((r"blocks\.\d+\.latent_state_attention\.q\.weight", 0),),
    "codes": ((r"transition_predictor\.head\.weight", 0),),
}
_COUNTED = {
    "layers": r"(?:blocks|action_embedders)\.(\d+)\.",
    "transition_layers": r"latent_state_rollout\.transition\.layers\.(\d+)\.",
}


@dataclass(frozen=True)
class ArchitectureRow:
    """One setting: what the shapes say and what the world description says (None: it does not show)."""

    setting: str
    from_shapes: int | None
    described: int | None

    @property
    def disagrees(self) -> bool:
        """Both are known and differ."""
        return None not in (self.from_shapes, self.described) and self.from_shapes != self.described


def sizes_shown(placed: Sequence[Placed]) -> dict[str, int]:
    """What the transformer's shapes say about the architecture; settings that do not show are left out."""
    shapes = {p.name: p.facts.shape for p in placed if p.component == TRANSFORMER}
    sizes: dict[str, int] = {}
    for setting, rules in _FROM_SHAPES.items():
        for pattern, axis in rules:
            hits = (shape for name, shape in shapes.items() if re.fullmatch(pattern, name) and len(shape) > axis)
            shape = next(hits, None)
            if shape is not None:
                sizes[setting] = shape[axis]
                break
    for setting, pattern in _COUNTED.items():
        indices = {int(match[1]) for name in shapes if (match := re.match(pattern, name))}
        if indices:
            sizes[setting] = max(indices) + 1
    return sizes


def sizes_described(preset: NativePreset) -> dict[str, int]:
    """The same settings of a preset."""
    flat = {**asdict(preset.transformer), **asdict(preset.latent_state)}
    flat["codes"] = math.prod(preset.latent_state.fsq_levels)
    return {name: int(flat[name]) for name in (*_FROM_SHAPES, *_COUNTED)}


def compare_architecture(placed: Sequence[Placed], preset: NativePreset | None) -> tuple[ArchitectureRow, ...]:
    """Shapes next to the description, setting by setting."""
    shown = sizes_shown(placed)
    described = sizes_described(preset) if preset else {}
    return tuple(ArchitectureRow(name, shown.get(name), described.get(name)) for name in (*_FROM_SHAPES, *_COUNTED))
