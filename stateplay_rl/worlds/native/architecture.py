"""Which sizes a world has, and who says so: preset, training config, world file. No torch here.

Shapes show most sizes. Heads, FSQ levels, step encoding and visibility have no shape of their own: without a
statement by the training config, the world file or (for the levels) the tokenizer file they stay *assumed*,
and a training command refuses the world.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stateplay_rl.config.foreign_yaml import read_yaml
from stateplay_rl.config.world import ArchitectureLines, WorldConfig
from stateplay_rl.errors import InputError
from stateplay_rl.worlds.native.presets import (
    LatentStateSizes,
    NativePreset,
    TokenizerSizes,
    TransformerSizes,
    preset,
)

UNSEEN = (
    "heads",
    "eps",
    "fsq_levels",
    "state_heads",
    "coupling_heads",
    "tokenizer_heads",
    "step_encoding",
    "visibility",
)
"""Settings that no shape shows."""

ON_RECORD: Mapping[str, tuple[str, ...]] = {"arena": UNSEEN, "stateplay-5b": ("heads", "eps")}
"""Of those, what is on record for each preset: arena is this package's own, the backbone's is published."""

ONLY = {"step_encoding": "sinusoidal", "visibility": "slot_causal"}
"""Settings of which this model computes one value only."""

_ALIASES = {
    # Not by name: an optimizer has an eps, too, and every attention its heads. They are on record for Wan2.2.
    "heads": (),
    "eps": (),
    "fsq_levels": ("fsq_levels",),
    "state_heads": ("state_heads", "latent_state_heads", "state_num_heads"),
    "coupling_heads": ("coupling_heads", "latent_state_attention_heads"),
    "tokenizer_heads": ("tokenizer_heads", "tokenizer_num_heads"),
    "step_encoding": ("step_encoding",),
    "visibility": ("visibility", "latent_attention_visibility"),
    "tokenizer_sha256": ("tokenizer_sha256", "transition_tokenizer_sha256"),
}
"""Our setting -> names under which a training config may state it, at any depth."""


@dataclass(frozen=True)
class Statement:
    """A setting's value and who states it."""

    value: Any
    source: str


@dataclass(frozen=True)
class Architecture:
    """A world's sizes.

    Args:
        sizes: of all networks, stated values in place of the preset's.
        stated: what world file and training config state, by setting.
        assumed: settings that nobody states.
        tokenizer_sha256: hash of the tokenizer that the SFT run used, where the training config records it.
    """

    sizes: NativePreset
    stated: Mapping[str, Statement]
    assumed: tuple[str, ...]
    tokenizer_sha256: str | None = None


def architecture_of(config: WorldConfig) -> Architecture:
    """Sizes of a resolved world.

    Raises:
        InputError: world file and training config contradict each other, a value that this model does not
            compute, or an unreadable training config.
    """
    return build(config.preset, config.architecture.stated(), config.files.training_config, config.training_keys)


def build(
    preset_name: str,
    lines: Mapping[str, Any],
    training_config: Path | None = None,
    training_keys: Mapping[str, str] | None = None,
) -> Architecture:
    """Sizes from a preset, lines of a world file and a training config.

    Args:
        preset_name: where unstated sizes come from.
        lines: setting -> value, as the world file's `architecture` states them.
        training_config: YAML or JSON of the SFT run.
        training_keys: our setting -> dotted key in the training config, for other names than `_ALIASES`.

    Raises:
        InputError: as `architecture_of`.
    """
    stated = {name: Statement(_plain(value), "world file") for name, value in lines.items()}
    recorded = {} if training_config is None else read_training_config(training_config, training_keys or {})
    sha256 = recorded.pop("tokenizer_sha256", None)
    for name, statement in recorded.items():
        if name in stated and stated[name].value != statement.value:
            raise InputError(
                f"{name}: the world file says {stated[name].value}, {statement.source} {statement.value}",
                "find out which one the supervised run used, and take the other line out",
            )
        stated.setdefault(name, statement)
    for name, value in ONLY.items():
        if name in stated and stated[name].value != value:
            raise InputError(
                f"{name} is {stated[name].value!r} ({stated[name].source}); the native model computes {value!r} only",
                "run this checkpoint through its own code: backend: stateplay",
            )
    assumed = tuple(name for name in UNSEEN if name not in stated and name not in ON_RECORD[preset_name])
    values = {name: statement.value for name, statement in stated.items()}
    return Architecture(_sizes(preset(preset_name), values), stated, assumed, None if sha256 is None else sha256.value)


def read_training_config(path: Path, keys: Mapping[str, str]) -> dict[str, Statement]:
    """The settings of `_ALIASES` that a training config states, at any depth.

    Raises:
        InputError: missing, not YAML or JSON, a named key that is not there, or two different values.
    """
    try:
        content = read_yaml(path)
    except OSError as error:
        raise InputError(f"training config {path}: {error.strerror}", "check training_config") from error
    except ValueError as error:
        raise InputError(
            f"training config {path} is neither YAML nor JSON ({error})", "give the run's config"
        ) from error
    leaves = dict(_leaves(content, ""))
    stated: dict[str, Statement] = {}
    for setting, names in _ALIASES.items():
        if setting in keys:
            if keys[setting] not in leaves:
                raise InputError(f"training config {path} has no key {keys[setting]}", "correct training_keys")
            hits = {keys[setting]: leaves[keys[setting]]}
        else:
            hits = {key: value for key, value in leaves.items() if key.rpartition(".")[2] in names}
        values = {repr(_plain(value)) for value in hits.values() if value is not None}
        if len(values) > 1:
            raise InputError(
                f"training config {path} states {setting} {len(values)} times: "
                + ", ".join(f"{key} = {value}" for key, value in hits.items()),
                f"say which one holds: training_keys: {{{setting}: {next(iter(hits))}}}",
            )
        if values:
            key, value = next((k, v) for k, v in hits.items() if v is not None)
            stated[setting] = Statement(
                _checked(setting, value, f"training config {path}: {key}"), f"{path.name}: {key}"
            )
    return stated


def _checked(setting: str, value: Any, where: str) -> Any:
    """A stated value of the right type."""
    if setting == "tokenizer_sha256":
        return str(value)
    try:
        lines = ArchitectureLines.model_validate({setting: value})
    except ValidationError as error:
        text = error.errors(include_url=False)[0]["msg"]
        raise InputError(f"{where} is {value!r}: {text}", f"architecture: {setting} wants another value") from error
    return _plain(lines.stated()[setting])


def _leaves(content: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from _leaves(value, f"{prefix}{name}.")
    else:
        yield prefix.removesuffix("."), content


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _sizes(base: NativePreset, values: Mapping[str, Any]) -> NativePreset:
    transformer = {f.name for f in fields(TransformerSizes)}
    latent = {f.name for f in fields(LatentStateSizes)}
    tokenizer = {f.name for f in fields(TokenizerSizes)}
    both = ("state_tokens", "fsq_levels")
    own = {k.removeprefix("tokenizer_"): v for k, v in values.items() if k.startswith("tokenizer_")}
    own |= {k: values[k] for k in both if k in values}
    if "in_channels" in values:
        own["in_channels"] = values["in_channels"]
    return NativePreset(
        replace(base.transformer, **{k: v for k, v in values.items() if k in transformer}),
        replace(base.latent_state, **{k: v for k, v in values.items() if k in latent}),
        replace(base.tokenizer, **{k: v for k, v in own.items() if k in tokenizer}),
    )
