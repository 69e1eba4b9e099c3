"""What the assembled model consists of: every parameter and buffer, built on the meta device.

Building needs torch and diffusers, whose import alone takes seconds. The lists of the presets are therefore
kept in `expected.json`, written by `python -m stateplay_rl.checks.audit.expected` and held against the real
modules by a test; a preset whose sizes no longer match the file is built afresh.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.checks.audit.classify import is_implicit
from stateplay_rl.worlds.native.presets import NativePreset, preset

TRANSFORMER = "transformer"
TOKENIZER = "transition_tokenizer"
VAE = "vae"
TEXT_ENCODER = "text_encoder"
COMPONENTS = (TRANSFORMER, TOKENIZER, VAE, TEXT_ENCODER)

ANY_SIZE = -1
"""Stands for a size that only the file knows (the vocabulary)."""

LIST_FILE = Path(__file__).with_name("expected.json")
_VOCABULARY_ON_META = 251

IMPLICIT_MODULES = (
    "latent_state_rollout.initializer",
    "latent_state_rollout.transition",
    "latent_state_rollout.output_projection",
    "blocks.*.latent_state_attention",
    "transition_predictor",
)
"""Only the SFT checkpoint can hold these: left at random initialisation they make an audit fail."""


@dataclass(frozen=True)
class ExpectedTensor:
    """One parameter or buffer of the assembled model.

    Args:
        component: `transformer`, `transition_tokenizer`, `vae` or `text_encoder`.
        name: key name; the training repository's for the transformer.
        shape: sizes, `ANY_SIZE` where only the file knows.
        buffer: a buffer, not a parameter.
    """

    component: str
    name: str
    shape: tuple[int, ...]
    buffer: bool = False

    @property
    def module(self) -> str:
        """The row of the coverage table that it belongs to."""
        return module_of(self.component, self.name)

    @property
    def implicit(self) -> bool:
        """Whether it belongs to the implicit latent state."""
        return self.component == TRANSFORMER and is_implicit(self.name)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of `shape` can fill it; a scalar may be stored as [] or as [1]."""
        if (self.shape, shape) in (((1,), ()), ((), (1,))):
            return True
        return len(self.shape) == len(shape) and all(
            mine in (ANY_SIZE, theirs) for mine, theirs in zip(self.shape, shape, strict=True)
        )


def module_of(component: str, name: str) -> str:
    """Coverage row of a tensor: blocks are taken together, other components are one row per half."""
    if component != TRANSFORMER:
        part = name.partition(".")[0]
        return f"{component}.{part}" if part in ("encoder", "decoder") else component
    block = re.match(r"blocks\.\d+\.([^.]+)", name)
    if block:
        return f"blocks.*.{block[1]}"
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "latent_state_rollout" else parts[0]


def expected_tensors(preset_name: str, described: NativePreset | None = None) -> tuple[ExpectedTensor, ...]:
    """Every parameter and buffer of a preset's world.

    Args:
        preset_name: the world's preset.
        described: sizes that a world file states in place of the preset's.

    Raises:
        InputError: no such preset.
    """
    sizes = _sizes_json(preset_name, described)
    if LIST_FILE.is_file():
        stored = json.loads(LIST_FILE.read_text(encoding="utf-8")).get(preset_name)
        if stored is not None and _shown(stored["sizes"]) == _shown(sizes):
            return tuple(ExpectedTensor(c, n, tuple(s), b) for c, n, s, b in stored["tensors"])
    return build_expected(preset_name, described)


def build_expected(preset_name: str, described: NativePreset | None = None) -> tuple[ExpectedTensor, ...]:
    """The same list from the modules themselves, on the meta device: no memory is taken."""
    import torch

    from stateplay_rl.worlds.native.keymap import ours_to_training
    from stateplay_rl.worlds.native.text import TEXT_PRESETS, build_text_model
    from stateplay_rl.worlds.native.transformer import LatentStateTransformer
    from stateplay_rl.worlds.native.transition_tokenizer import TransitionTokenizer
    from stateplay_rl.worlds.native.vae import VAE_PRESETS, VideoVae

    chosen = described or preset(preset_name)
    with torch.device("meta"):
        transformer = LatentStateTransformer(chosen.transformer, chosen.latent_state)
        tokenizer = TransitionTokenizer(chosen.tokenizer)
        vae = VideoVae(VAE_PRESETS[preset_name])
        text = build_text_model(TEXT_PRESETS[preset_name], _VOCABULARY_ON_META)
    result: list[ExpectedTensor] = []
    for component, module in (
        (TRANSFORMER, transformer),
        (TOKENIZER, tokenizer),
        (VAE, vae),
        (TEXT_ENCODER, text),
    ):
        for name, shape, buffer in _named_tensors(module):
            key = ours_to_training(name) if component == TRANSFORMER else name.removeprefix("model.")
            assert key is not None, f"no training name for {name}"
            if component == TEXT_ENCODER:
                shape = tuple(ANY_SIZE if size == _VOCABULARY_ON_META else size for size in shape)
            result.append(ExpectedTensor(component, key, shape, buffer))
    return tuple(result)


def _named_tensors(module: Any) -> Iterable[tuple[str, tuple[int, ...], bool]]:
    """Parameters and buffers, each shared one once (tied embeddings are one parameter)."""
    for name, parameter in module.named_parameters():
        yield name, tuple(parameter.shape), False
    for name, buffer in module.named_buffers():
        yield name, tuple(buffer.shape), True


def _sizes_json(preset_name: str, described: NativePreset | None = None) -> Any:
    return json.loads(json.dumps(asdict(described or preset(preset_name))))


def _shown(sizes: Any) -> Any:
    """The sizes that decide shapes: heads and epsilons do not, of the levels only number and product do."""
    shown = {}
    for part, values in sizes.items():
        kept = {k: v for k, v in values.items() if not k.endswith("heads") and k not in ("eps", "fsq_levels")}
        if "fsq_levels" in values:
            kept["levels"] = [len(values["fsq_levels"]), math.prod(values["fsq_levels"])]
        shown[part] = kept
    return shown


def write_lists(path: Path = LIST_FILE) -> None:
    """Write the lists of all presets."""
    from stateplay_rl.stores.atomic import write_text
    from stateplay_rl.worlds.native.presets import PRESETS

    lists = {}
    for name in sorted(PRESETS):
        rows = [[t.component, t.name, list(t.shape), t.buffer] for t in build_expected(name)]
        lists[name] = {"sizes": _sizes_json(name), "tensors": rows}
    write_text(path, json.dumps(lists, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write_lists()
