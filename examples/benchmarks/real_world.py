"""The real world's size on this machine, without its weights: random ones of the same shapes.

    python examples/benchmarks/real_world.py --out real_world [--clips FOLDER] [--device cuda]

Writes the user's file layout (base model in shards, `.pth` files, a scoped checkpoint, a tokenizer), audits and
loads it, encodes a real first frame, rolls out 97 and 101 frames in 2 steps, decodes, writes mp4 files. What
was saved must come back bit for bit. `OUT/result.json` holds seconds and peak memory of each part.

`--preset arena --device cpu` is the same at the size of the embedded world.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor

from stateplay_rl.checks.audit.classify import is_implicit
from stateplay_rl.checks.parity import drawn_inputs
from stateplay_rl.config.audit import AuditConfig
from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.stages import audit_ckpt
from stateplay_rl.stores.video import decode_mp4, encode_mp4
from stateplay_rl.worlds.base import ConditionInputs, WorldSpec
from stateplay_rl.worlds.load import load_native_world, world_spec
from stateplay_rl.worlds.native.export import write_training_checkpoint
from stateplay_rl.worlds.native.keymap import to_training_names
from stateplay_rl.worlds.native.original_names import text_to_original, vae_to_original
from stateplay_rl.worlds.native.presets import preset
from stateplay_rl.worlds.native.random_world import PIXELS, random_networks, random_text, sizes_of
from stateplay_rl.worlds.native.stream_writer import write_streamed
from stateplay_rl.worlds.native.vae import STATISTICS
from stateplay_rl.worlds.native.weight_files import list_tensors, stream
from stateplay_rl.worlds.native.world import NativeModules, NativeWorld
from stateplay_rl.worlds.preparation import hold_actions, prepare_first_frame
from stateplay_rl.worlds.sampling import sample_candidates
from stateplay_rl.worlds.world_files import resolve_world

LENGTHS = {"stateplay-5b": (97, 101), "arena": (33, 37)}
SHARDS = 3
HOLD_ROWS = 10
STEPS = 2
MIB = float(1 << 20)


@dataclass
class Meter:
    """Seconds and peak memory of named parts."""

    device: torch.device
    parts: dict[str, dict[str, float]] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure what happens inside; kernels are finished on both ends."""
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        started = time.perf_counter()
        yield
        if on_gpu:
            torch.cuda.synchronize(self.device)
        entry = {"seconds": time.perf_counter() - started}
        if on_gpu:
            entry["peak_device_mib"] = torch.cuda.max_memory_allocated(self.device) / MIB
        # The process's highest so far, not the part's own: the kernel keeps one figure.
        entry["host_peak_so_far_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.parts[name] = entry
        print(f"{name}: {entry['seconds']:.1f} s", file=sys.stderr, flush=True)


def random_modules(name: str, folder: Path, device: torch.device, dtype: torch.dtype) -> NativeModules:
    """All networks of a preset with random weights, on the device."""
    return replace(random_networks(sizes_of(name), device, dtype), text=random_text(name, folder, device, dtype))


def write_layout(folder: Path, modules: NativeModules, name: str) -> Path:
    """The user's files and a world file for them; returns the world file."""
    base = folder / "base_model"
    base.mkdir()
    state = to_training_names(modules.transformer.state_dict()).state
    trained = {key: value for key, value in state.items() if is_implicit(key) or key.startswith("action_embedders")}
    _save(folder / "step-4572.safetensors", trained)
    backbone = [key for key in state if key not in trained]
    per_shard = -(-len(backbone) // SHARDS)
    index: dict[str, str] = {}
    for number in range(SHARDS):
        part = {key: state[key] for key in backbone[number * per_shard : (number + 1) * per_shard]}
        shard = f"diffusion_pytorch_model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        _save(base / shard, part)
        index |= dict.fromkeys(part, shard)
    listing = base / "diffusion_pytorch_model.safetensors.index.json"
    listing.write_text(json.dumps({"metadata": {}, "weight_map": index}))
    vae = modules.vae.export_weights()
    statistics = {} if modules.vae.architecture.latents_mean else {key: vae[key].cpu() for key in STATISTICS}
    theirs = vae_to_original(
        {key: value.cpu() for key, value in vae.items() if key not in STATISTICS},
        modules.vae.architecture.num_res_blocks,
    )
    torch.save({**theirs, **statistics}, base / "Wan2.2_VAE.pth")
    text = text_to_original(modules.text.export_weights())
    torch.save({key: value.cpu() for key, value in text.items()}, base / "models_t5_umt5-xxl-enc-bf16.pth")
    torch.save({k: v.cpu() for k, v in modules.tokenizer.state_dict().items()}, folder / "transition_tokenizer.pt")
    return _world_file(folder, name, modules)


def _world_file(folder: Path, name: str, modules: NativeModules) -> Path:
    height, width = PIXELS[name]
    world = {
        "name": f"random-{name}",
        "preset": name,
        "files": {
            "checkpoint": "step-4572.safetensors",
            "base": "base_model",
            "transition_tokenizer": "transition_tokenizer.pt",
            "vae": "base_model/Wan2.2_VAE.pth",
            "text_encoder": "base_model/models_t5_umt5-xxl-enc-bf16.pth",
            "text_tokenizer": "google/umt5-xxl",
        },
        "architecture": {
            "fsq_levels": list(preset(name).latent_state.fsq_levels),
            "state_heads": preset(name).latent_state.state_heads,
            "coupling_heads": preset(name).latent_state.coupling_heads,
            "tokenizer_heads": preset(name).tokenizer.heads,
            "step_encoding": "sinusoidal",
            "visibility": "slot_causal",
        },
        "frame_height": height,
        "frame_width": width,
        "compute_dtype": str(modules.transformer.compute_dtype).removeprefix("torch."),
        "device": str(next(modules.transformer.parameters()).device),
    }
    path = folder / "world.yaml"
    path.write_text(yaml.safe_dump(world, sort_keys=False))
    return path


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    write_streamed(path, {k: (v.dtype, tuple(v.shape)) for k, v in tensors.items()}, tensors.values())


def read_condition(spec: WorldSpec, clips: Path | None, frames: int) -> ConditionInputs:
    """A real clip's first frame, buttons and prompt; drawn ones without clips."""
    slots = spec.latent_frames(frames)
    if clips is None:
        return drawn_inputs(spec, slots, 0)[0]
    import pyarrow.parquet as pq

    clip = sorted(path for path in clips.iterdir() if (path / "first_frame.png").is_file())[0]
    with Image.open(clip / "first_frame.png") as image:
        first = prepare_first_frame(image, spec.frame_width, spec.frame_height)
    table = pq.read_table(clip / "actions.parquet")
    raw_RK = np.stack([table.column(button).to_numpy() for button in BUTTONS], axis=1)
    prompt = (clip / "prompt.txt").read_text(encoding="utf-8")
    return ConditionInputs(clip.name, first, hold_actions(raw_RK, HOLD_ROWS).held_RK, prompt, slots)


def roll_out(world: NativeWorld, inputs: ConditionInputs, frames: int, out: Path, meter: Meter) -> None:
    """One candidate in two steps, decoded and written."""
    with meter.part(f"encode first frame and prompt, {frames} frames"):
        batch = world.encode_conditions([inputs])
    noise = [torch.Generator().manual_seed(0)]
    with meter.part(f"rollout, {frames} frames, {STEPS} steps"):
        latents = sample_candidates(world, batch, policy="live", sigmas=sampling_sigmas(STEPS), noise=noise)
    with meter.part(f"decode, {frames} frames"):
        videos = world.decode(latents.float())
    path = out / f"candidate_{frames}.mp4"
    with meter.part(f"mp4, {frames} frames"):
        encode_mp4(path, videos[0], world.spec.fps)
    require(decode_mp4(path).shape == videos[0].shape, f"{path} does not hold {frames} frames")
    require(bool(torch.isfinite(latents.float()).all()), "the rollout is not finite")
    require(len(videos[0]) == frames, f"{len(videos[0])} frames decoded, {frames} expected")


def same_bits(saved: NativeModules, world: NativeWorld) -> int:
    """Tensors of a loaded world that equal the saved ones bit for bit.

    Raises:
        SystemExit: one differs; it is named.
    """
    loaded = world.modules
    pairs = (
        (saved.transformer, loaded.transformer),
        (saved.tokenizer, loaded.tokenizer),
        (saved.vae, loaded.vae),
        (saved.text.model, loaded.text.model),
    )
    count = 0
    for before, after in pairs:
        values = after.state_dict()
        for name, value in before.state_dict().items():
            same = value.dtype == values[name].dtype and torch.equal(value, values[name])
            require(same, f"{type(after).__name__} {name} came back different")
            count += 1
    return count


def exported_alike(checkpoint: Path, policy: dict[str, Tensor], out: Path) -> int:
    """An untrained policy written back into the checkpoint's format: all of its tensors are the same bits."""
    write_training_checkpoint([checkpoint], policy, out)
    names = [tensor.name for tensor in list_tensors([checkpoint])]
    require(names == [tensor.name for tensor in list_tensors([out])], "the export has other names")
    for (name, before), (_, after) in zip(stream(checkpoint, names), stream(out, names), strict=True):
        require(before.dtype == after.dtype and torch.equal(before, after), f"export changed {name}")
    return len(names)


def require(condition: bool, what: str) -> None:
    """Stop with a message unless the condition holds."""
    if not condition:
        raise SystemExit(f"FAILED: {what}")


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Everything, in order; returns the result record."""
    device = torch.device(arguments.device)
    meter = Meter(device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    files = folder / "files"
    files.mkdir()
    with meter.part("create random weights on the device"):
        saved = random_modules(arguments.preset, files, device, dtype)
    with meter.part("save in the user's layout"):
        world_file = write_layout(files, saved, arguments.preset)
    with meter.part("audit, headers only, without hashes"):
        headers = audit_ckpt.run(
            AuditConfig(checkpoint=files / "step-4572.safetensors", hash_limit_bytes=0), folder / "audit-headers"
        )
    with meter.part("audit of the world, with hashes"):
        audit = audit_ckpt.run(AuditConfig(world=str(world_file)), folder / "audit")
    require(headers.verdict == "partial", f"the scoped file alone is {headers.verdict}")
    require(audit.verdict == "passed" and audit.audit["trainable"], f"audit: {audit.audit['reasons']}")
    config = resolve_world(str(world_file))
    with meter.part("load"):
        world = load_native_world(config)
    with meter.part("compare bit for bit"):
        identical = same_bits(saved, world)
    del saved
    for frames in LENGTHS[arguments.preset]:
        inputs = read_condition(world_spec(config), arguments.clips, frames)
        roll_out(world, inputs, frames, folder, meter)
    transition = preset_count(world, "latent_state_rollout.transition.")
    groups = world.set_mode("coupling")
    with meter.part("export an untrained policy"):
        exported = exported_alike(
            files / "step-4572.safetensors", world.export_policy("live"), folder / "exported.safetensors"
        )
    return {
        "preset": arguments.preset,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "dtype": str(dtype),
        "bytes_on_disk": sum(f.stat().st_size for f in files.rglob("*") if f.is_file()),
        "audit": {"verdict": audit.verdict, "trainable": audit.audit["trainable"], "sources": audit.audit["sources"]},
        "tensors_identical_after_load": identical,
        "tensors_identical_after_export": exported,
        "coupling_lora_parameters": sum(group.count for group in groups),
        "transition_parameters": transition,
        "first_frame": "drawn" if arguments.clips is None else "real",
        "parts": meter.parts,
    }


def preset_count(world: NativeWorld, prefix: str) -> int:
    """Parameters of the transformer below a prefix."""
    return sum(p.numel() for n, p in world.transformer.named_parameters() if n.startswith(prefix))


def show(result: dict[str, Any]) -> None:
    """Print the record as a table."""
    table = Table("part", "seconds", "device MiB", "host MiB so far", title=f"{result['preset']} on {result['device']}")
    for name, part in result["parts"].items():
        on_device = f"{part['peak_device_mib']:.0f}" if "peak_device_mib" in part else ""
        table.add_row(name, f"{part['seconds']:.2f}", on_device, f"{part['host_peak_so_far_mib']:.0f}")
    Console().print(table)
    for key in ("tensors_identical_after_load", "tensors_identical_after_export", "coupling_lora_parameters"):
        print(f"{key}: {result[key]:,}")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write `result.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="new folder for files, videos and result.json")
    parser.add_argument("--preset", choices=sorted(PIXELS), default="stateplay-5b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--clips", type=Path, help="folder of real clips (first_frame.png, actions.parquet, prompt.txt)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the weight files (23 GB at full size)")
    arguments = parser.parse_args(argv)
    folder: Path = arguments.out.absolute()
    folder.mkdir(parents=True)
    result = measure(arguments, folder)
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if not arguments.keep:
        shutil.rmtree(folder / "files")
        (folder / "exported.safetensors").unlink()
    show(result)


if __name__ == "__main__":
    main()
