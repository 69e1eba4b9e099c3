"""`sprl verify profile`: ceilings, then every row, then numerics, traces, the library's models and the student."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from stateplay_rl.config.verify import ProfileConfig
from stateplay_rl.config.world import SpeedOptions, WorldConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.profile import numerics, trace
from stateplay_rl.stages.profile.ceilings import Ceilings, measure_ceilings
from stateplay_rl.stages.profile.floors import Floors, transformer_work, vae_work
from stateplay_rl.stages.profile.library import compare
from stateplay_rl.stages.profile.meter import GIB, Meter
from stateplay_rl.stages.profile.record import Record
from stateplay_rl.stages.profile.rows import REAL_FRAMES, REAL_PRESET, STUDENT_ROWS, Row, table
from stateplay_rl.stages.profile.student_rows import measure_student
from stateplay_rl.stages.profile.workload import Workload
from stateplay_rl.stages.verify import default_out
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.worlds.load import load_native_world, resolve_device
from stateplay_rl.worlds.native.presets import PRESETS
from stateplay_rl.worlds.native.random_world import random_world, sizes_of
from stateplay_rl.worlds.native.speed import resolve_speed
from stateplay_rl.worlds.native.text import TEXT_PRESETS
from stateplay_rl.worlds.native.world import NativeWorld
from stateplay_rl.worlds.world_files import all_files, resolve_world

SHORT_FRAMES = 33
NO_SYNC_STEPS = 3


@dataclass(frozen=True)
class ProfileSummary:
    """Where the record lies, and what it holds."""

    out: Path
    record: dict[str, Any]


def run(config: ProfileConfig, out: Path | None = None, *, overwrite: bool = False) -> ProfileSummary:
    """Time everything and write `profile.json`.

    Args:
        config: world, rows, repeats.
        out: directory to write; None for `verify-<utc>`.
        overwrite: empty `out` first.

    Raises:
        UsageError: a world that is not the native model's, or a cap without a GPU.
        InputError: a world that cannot be loaded.
        OutputError: the output directory is not usable; nothing was timed.
    """
    preset, world_config = _which(config)
    device = resolve_device("auto" if world_config is None else world_config.device)
    _cap(config, device)
    with OutputDirectory.open(
        default_out() if out is None else out,
        schema="verify",
        version=layout.SCHEMAS["verify"],
        command="verify profile",
        config=config,
        inputs={},
        resume=False,
        overwrite=overwrite,
        protected=[] if world_config is None or config.random_weights else all_files(world_config.files),
    ) as directory:
        record = Record(time.monotonic(), config.seconds, _machine(device))
        ceilings = _measure(config, preset, _world(config, preset, world_config, device), record, directory)
        if any(_wanted(config, name) for name in STUDENT_ROWS):
            # After the world, which has left the memory: both do not fit a small card.
            meter = Meter(device)
            meter.release()
            _cap(config, device)
            measure_student(meter, preset == REAL_PRESET, ceilings, record)
        directory.write_json(layout.PROFILE, record.values)
        directory.seal(extra={"kind": "profile"})
    return ProfileSummary(directory.path, record.values)


def _which(config: ProfileConfig) -> tuple[str, WorldConfig | None]:
    """Name of the sizes, and the world file's config unless only a preset was named."""
    if config.random_weights and config.world in PRESETS:
        return config.world, None
    world = resolve_world(config.world)
    if world.backend != "native":
        raise UsageError(
            f"world {config.world} runs a checkout's own code; the profile times the native model",
            "give the native world file of the same checkpoint, or --random-weights",
        )
    return world.preset, world


def _world(config: ProfileConfig, preset: str, world: WorldConfig | None, device: torch.device) -> NativeWorld:
    if world is not None and config.speed != SpeedOptions():
        world = world.model_copy(update={"speed": config.speed})
    if world is not None and not config.random_weights:
        return load_native_world(world)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if world is not None:
        dtype = getattr(torch, world.compute_dtype)
    options = config.speed if world is None else world.speed
    return random_world(sizes_of(preset), device, dtype, speed=resolve_speed(options, device, dtype))


def _cap(config: ProfileConfig, device: torch.device) -> None:
    if config.cap_gib is None:
        return
    if device.type != "cuda":
        raise UsageError("--cap-gib limits a GPU's memory, and there is none here", "leave it out")
    total = torch.cuda.get_device_properties(device).total_memory / GIB
    torch.cuda.set_per_process_memory_fraction(min(1.0, config.cap_gib / total), device)


def _machine(device: torch.device) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    return {
        "machine": {
            "device": torch.cuda.get_device_name(device) if on_gpu else platform.processor() or "cpu",
            "memory_gib": torch.cuda.get_device_properties(device).total_memory / GIB if on_gpu else None,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version() if on_gpu else None,  # type: ignore[no-untyped-call]
            "threads": torch.get_num_threads(),
        }
    }


def _measure(config: ProfileConfig, preset: str, world: NativeWorld, record: Record, out: OutputDirectory) -> Ceilings:
    meter = Meter(world.device)
    frames = config.frames or (REAL_FRAMES if preset == REAL_PRESET else SHORT_FRAMES)
    workload = Workload(world, preset, frames)
    _, _, slots, height, width = workload.noise_BCfHW.shape
    sizes, state = world.transformer.sizes, world.transformer.latent_state
    assert state is not None, "a native world has latent-state modules"
    per_slot = (height // sizes.patch[1]) * (width // sizes.patch[2])
    ceilings = measure_ceilings(
        meter, world.compute_dtype, slots * per_slot, sizes.heads, sizes.head_dim, sizes.ffn_dim, config.repeats
    )
    work = transformer_work(sizes, state, slots, per_slot, TEXT_PRESETS[preset].tokens)
    decode_work, encode_work = vae_work(world.modules.vae.architecture, slots, height, width)
    record.values |= {
        "world": {"preset": preset, "frames": frames, "slots": slots, "tokens": slots * per_slot,
                  "compute_dtype": str(world.compute_dtype).removeprefix("torch."), "speed": _plain(world)},
        "ceilings": _ceilings(ceilings),
        "work_tflop": asdict(work) | {"vae_decode": decode_work, "vae_encode": encode_work},
    }  # fmt: skip
    floors = Floors.of(work, ceilings)
    rows = table(
        floors,
        decode_work / ceilings.matmul_tflops,
        encode_work / ceilings.matmul_tflops,
        (config.steps, config.few_steps),
    )

    chosen = [row for row in rows if _wanted(config, row.name)]
    real = preset == REAL_PRESET and frames == REAL_FRAMES
    record.values["rows"], record.values["traces"], record.values["library"] = {}, {}, {}
    with Progress("profile", len(chosen), "rows") as progress:
        for row in chosen:
            _row(config, row, workload, meter, record, real)
            # After every row: what was measured outlives an interruption.
            out.write_json(layout.PROFILE, record.values)
            progress.say(f"{row.name}: {_say(record.values['rows'][row.name])}")
            progress.advance()
    parts: dict[str, Callable[[], Any]] = {
        "checkpointing": lambda: _choice(record.values["rows"], config.cap_gib),
        "compilation": lambda: _compilation(preset, workload, frames + 4),
        "loop_without_waiting": lambda: _loop(workload),
        "micro_step_waits": lambda: Counter(workload.waits_of_micro_steps(anchors=True)),
        "transformer_drift": lambda: numerics.transformer_drift(workload),
        "vae_drift": lambda: numerics.vae_drift(workload),
    }
    for name, part in parts.items():
        if _wanted(config, name):
            record.part(name, part)
            out.write_json(layout.PROFILE, record.values)
    if config.compare:
        if config.cap_gib is not None:
            torch.cuda.set_per_process_memory_fraction(1.0, world.device)
        for _ in compare(workload, meter, record, config.repeats):
            out.write_json(layout.PROFILE, record.values)
    return ceilings


def _wanted(config: ProfileConfig, name: str) -> bool:
    return not config.rows or name.startswith(config.rows)


def _row(config: ProfileConfig, row: Row, workload: Workload, meter: Meter, record: Record, real: bool) -> None:
    world = workload.world
    repeats = 1 if row.long else config.repeats
    part = Record(record.began, record.limit)
    with _checkpointing(world, row):
        part.part("row", lambda: asdict(meter.measure(lambda: row.work(workload), repeats)))
        if row.traced and "seconds" in part.values["row"]:
            part.part("trace", lambda: trace.summarise(meter, lambda: row.work(workload)))
    line = {"checkpointing": row.checkpointing, "floor": row.floor, **part.values["row"]}
    if "seconds" in line:
        line["seconds"] /= row.parts
        if row.name.startswith("candidate"):
            line["parts_seconds"] = workload.candidate_parts
        line["to_floor"] = line["seconds"] / row.floor if row.floor else None
    if real:
        line |= {"target": row.target, "target_gib": row.target_gib}
    record.values["rows"][row.name] = line
    if "trace" in part.values:
        record.values["traces"][row.name] = part.values["trace"]


def _say(line: dict[str, Any]) -> str:
    if "seconds" not in line:
        return str(line.get("failed") or line["left_out"])
    parts = {name: round(value, 2) for name, value in line.get("parts_seconds", {}).items()}
    peak = "" if line["peak_gib"] is None else f", {line['peak_gib']:.1f} GiB"
    return f"{line['seconds']:.4f} s (first call {line['first_seconds']:.1f} s{peak}) {parts or ''}"


@contextmanager
def _checkpointing(world: NativeWorld, row: Row) -> Iterator[None]:
    before = world.transformer.checkpointing
    world.transformer.checkpointing = row.checkpointing
    try:
        yield
    finally:
        world.transformer.checkpointing = before


def _compilation(preset: str, workload: Workload, frames: int) -> dict[str, Any]:
    """Graphs made for a second length, and for going back and forth between both afterwards (must be 0)."""
    longer = Workload(workload.world, preset, frames)
    counters = torch._dynamo.utils.counters["stats"]
    workload.forward()
    start = counters["unique_graphs"]
    longer.forward()
    second = counters["unique_graphs"]
    for _ in range(2):
        workload.forward()
        longer.forward()
    return {
        "frames": [workload.world.spec.temporal_factor * (workload.slots - 1) + 1, frames],
        "graphs_for_second_length": second - start,
        "graphs_afterwards": counters["unique_graphs"] - second,
        "graphs": counters["unique_graphs"],
        "graph_breaks": sum(torch._dynamo.utils.counters["graph_break"].values()),
    }


def _choice(rows: Mapping[str, Mapping[str, Any]], cap_gib: float | None) -> dict[str, Any]:
    """The least recomputation with which a micro-step ran within the memory that it was given."""
    names = ("micro-step", "selective micro-step", "micro-step, checkpointed")
    ran = [rows[name] for name in names if "seconds" in rows.get(name, {})]
    if not ran:
        return {"gradient_checkpointing": None, "cap_gib": cap_gib}
    found = ran[0]
    return {
        "gradient_checkpointing": found["checkpointing"],
        "peak_gib": found["peak_gib"],
        "seconds": found["seconds"],
        "cap_gib": cap_gib,
    }


def _loop(workload: Workload) -> dict[str, Any]:
    workload.loop_without_waiting(NO_SYNC_STEPS)
    return {"steps": NO_SYNC_STEPS, "waits": 0}


def _ceilings(ceilings: Ceilings) -> dict[str, Any]:
    return asdict(ceilings) | {"fastest_attention": ceilings.fastest}


def _plain(world: NativeWorld) -> dict[str, Any]:
    speed = world.speed
    return {
        "attention": None if speed.attention is None else speed.attention.name,
        "compiled": speed.compiled,
        "kernels": speed.kernels,
        "fused_vae": speed.fused_vae,
    }
