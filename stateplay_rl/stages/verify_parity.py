"""`sprl verify parity`: is the native model the user's model? Two worlds on the same inputs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stateplay_rl.checks.audit.trainable import settings_sha256, weight_paths
from stateplay_rl.checks.parity import Measured, ParityPlan, compare, drawn_inputs, measure
from stateplay_rl.config.verify import ParityConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import InputError
from stateplay_rl.stages.candidates import condition_inputs, reference_frames
from stateplay_rl.stages.verify import VerifySummary, default_out, seal_record
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.worlds.base import World, WorldSpec
from stateplay_rl.worlds.load import load_world, world_spec
from stateplay_rl.worlds.native.shards import shards_of
from stateplay_rl.worlds.world_files import all_files, resolve_world


def run(config: ParityConfig, out: Path | None = None, *, overwrite: bool = False) -> VerifySummary:
    """Load the worlds one after the other, compute, compare, write the record.

    Args:
        config: the two worlds and the inputs.
        out: directory to write; None for `verify-<utc>`.
        overwrite: empty `out` first.

    Returns:
        A line an output. A difference is a failed line, not an exception.

    Raises:
        InputError: a world that cannot be loaded, worlds of different sizes, or unusable conditions.
        OutputError: the output directory is not usable; nothing was computed.
    """
    worlds = [resolve_world(name) for name in config.worlds]
    specs = [world_spec(world) for world in worlds]
    _same_sizes(specs)
    plan = _plan(config, specs[0])
    with OutputDirectory.open(
        default_out() if out is None else out,
        schema="verify",
        version=layout.SCHEMAS["verify"],
        command="verify parity",
        config=config,
        inputs={} if config.conditions is None else {"conditions": config.conditions},
        resume=False,
        overwrite=overwrite,
        protected=[file for world in worlds for file in _protected(world)],
    ) as directory:
        measured: list[Measured] = []
        records: list[dict[str, Any]] = []
        for name, world_config in zip(config.worlds, worlds, strict=True):
            world = load_world(world_config)
            measured.append(measure(world, plan, measured[0].encoded if measured else None))
            records.append(_record(name, world_config, world))
            del world
            _free_memory()
        tolerances = {
            "encode": config.tolerance_encode,
            "network": config.tolerance,
            "gradient": config.tolerance_gradient,
        }
        lines = tuple(compare(measured[0], measured[1], tolerances))
        summary = VerifySummary("parity", directory.path, lines)
        seal_record(directory, summary, None, {"worlds": records}, {"worlds": records})
    return summary


def _plan(config: ParityConfig, spec: WorldSpec) -> ParityPlan:
    inputs, clip_ThwC = drawn_inputs(spec, config.slots, config.seed)
    if config.conditions is not None:
        store = ConditionStore.open(config.conditions)
        record = store.select("pass")[0]
        inputs = condition_inputs(store, record, _Sized(spec))
        frames = reference_frames(store, record)
        if frames is None:
            frames = np.repeat(inputs.first_frame_hwc[None], record.frames, axis=0)
        clip_ThwC = frames
    return ParityPlan(inputs, clip_ThwC, config.sigmas, config.steps, config.seed)


class _Sized:
    """As much of a world as `condition_inputs` asks for."""

    def __init__(self, spec: WorldSpec) -> None:
        self.spec = spec


def _same_sizes(specs: list[WorldSpec]) -> None:
    for field in ("frame_height", "frame_width", "latent_channels", "spatial_factor", "temporal_factor"):
        left, right = (getattr(spec, field) for spec in specs)
        if left != right:
            raise InputError(
                f"the worlds are of different sizes: {field} {left} and {right}", "compare worlds of one model"
            )


def _record(name: str, config: WorldConfig, world: World) -> dict[str, Any]:
    """What the record says about a world, so that training can tell whether it is still the compared one."""
    files = [{"realpath": str(f.resolve()), "size": f.stat().st_size, "mtime_ns": f.stat().st_mtime_ns}
             for f in _weight_files(config)]  # fmt: skip
    return {
        "name": name,
        "backend": config.backend,
        "world_sha256": world.sha256,
        "settings_sha256": settings_sha256(config),
        "facts": dict(world.facts),
        "compute_dtype": config.compute_dtype,
        "files": files,
    }


def _weight_files(config: WorldConfig) -> Iterator[Path]:
    for path in weight_paths(config):
        yield from shards_of(path)


def _protected(config: WorldConfig) -> list[Path]:
    return [*all_files(config.files), *([config.checkout] if config.checkout else [])]


def _free_memory() -> None:
    """Give the first world's memory back before the second one is loaded."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
