"""How much memory a host needs to load real weight files: the model once, plus at most 2 GB.

    python examples/benchmarks/load_memory.py --out DIR [--layers 30] [--text-layers 24]

Writes files of the real layout and shapes, zeros for values (safetensors as sparse files, which take no disk): the
backbone in three shards with an index, a scoped checkpoint, the text encoder as a `.pth` file. Each is then loaded on
the CPU by the package's own loader, in a process of its own, whose peak resident memory is read. Fewer layers make
smaller files of the same kind. Exit code 4 where a peak passes the bound. Linux only (/proc).
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from stateplay_rl.checks.audit.classify import is_implicit
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.worlds.native.architecture import Architecture, architecture_of
from stateplay_rl.worlds.native.fill import fill_exactly, require_filled, stored_under_our_names
from stateplay_rl.worlds.native.keymap import to_training_names
from stateplay_rl.worlds.native.original_names import text_name, text_to_original
from stateplay_rl.worlds.native.package import load_transformer
from stateplay_rl.worlds.native.text import TEXT_PRESETS, TIED_EMBEDDING, TextArchitecture, build_text_model
from stateplay_rl.worlds.native.transformer import LatentStateTransformer

ROWS = {"stateplay-5b": 256_384, "arena": 64}
"""Rows of the text encoder's embedding."""
SHARDS = 3
BOUND_BYTES = 2e9
"""What a host may hold beside the model, of the real size."""
GB = 1e9
PARTS = ("transformer", "text encoder")


@dataclass(frozen=True)
class Sizes:
    """Which files: a preset's, with so many blocks and layers of the text encoder."""

    preset: str
    layers: int
    text_layers: int


def world_config(folder: Path, preset: str) -> WorldConfig:
    """The files as a world would name them."""
    files = {
        "checkpoint": folder / "step-4572.safetensors",
        "base": folder / "base",
        "text_encoder": folder / "models_t5_umt5-xxl-enc-bf16.pth",
        # Not read here, but a world names them.
        "transition_tokenizer": folder / "none",
        "vae": folder / "none",
        "text_tokenizer": folder / "none",
    }
    return WorldConfig.model_validate({"name": "load-memory", "preset": preset, "files": files})


def architecture(config: WorldConfig, layers: int) -> Architecture:
    """The preset's, with so many blocks."""
    full = architecture_of(config)
    return replace(full, sizes=replace(full.sizes, transformer=replace(full.sizes.transformer, layers=layers)))


def text_architecture(sizes: Sizes) -> TextArchitecture:
    """The preset's text encoder, with so many layers."""
    return replace(TEXT_PRESETS[sizes.preset], num_layers=sizes.text_layers)


def write_transformer(folder: Path, sizes: Sizes) -> None:
    """Scoped checkpoint and backbone shards with an index."""
    shown = architecture(world_config(folder, sizes.preset), sizes.layers).sizes
    with torch.device("meta"):
        model = LatentStateTransformer(shown.transformer, shown.latent_state, torch.bfloat16)
    state = to_training_names(model.state_dict()).state
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    scoped = {n: s for n, s in shapes.items() if is_implicit(n) or n.startswith("action_embedders")}
    write_sparse(folder / "step-4572.safetensors", scoped)
    backbone = [name for name in shapes if name not in scoped]
    base, index = folder / "base", {}
    base.mkdir()
    for number in range(SHARDS):
        shard = f"diffusion_pytorch_model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        names = backbone[number * len(backbone) // SHARDS : (number + 1) * len(backbone) // SHARDS]
        write_sparse(base / shard, {name: shapes[name] for name in names})
        index |= dict.fromkeys(names, shard)
    listing = {"metadata": {}, "weight_map": index}
    (base / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(listing), encoding="utf-8")


def write_sparse(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A bfloat16 safetensors file of zeros that takes no disk."""
    header, position = {}, 0
    for name, shape in shapes.items():
        end = position + 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + position)


def write_text(folder: Path, sizes: Sizes) -> None:
    """The original's `.pth` file: a pickle with tensors beside it."""
    with torch.device("meta"):
        model = build_text_model(text_architecture(sizes), ROWS[sizes.preset])
    own = {name: torch.zeros(value.shape, dtype=torch.bfloat16) for name, value in model.state_dict().items()
           if name != TIED_EMBEDDING}  # fmt: skip
    torch.save(text_to_original(own), folder / "models_t5_umt5-xxl-enc-bf16.pth")


def load(part: str, folder: Path, sizes: Sizes) -> torch.nn.Module:
    """Load a part on the CPU as a world does."""
    config, cpu = world_config(folder, sizes.preset), torch.device("cpu")
    if part == "transformer":
        return load_transformer(config, architecture(config, sizes.layers), torch.bfloat16, cpu)[0]
    stored = stored_under_our_names([config.files.text_encoder], text_name)
    stored.pop(TIED_EMBEDDING, None)
    with torch.device("meta"):
        model = build_text_model(text_architecture(sizes), ROWS[sizes.preset])
    fill_exactly(
        model, stored, part, dtype_of=lambda *_: torch.bfloat16, device=cpu, optional=(TIED_EMBEDDING,)
    )  # fmt: skip
    model.encoder.embed_tokens.weight = model.shared.weight
    require_filled(model, part)
    return model


def peak_bytes() -> int:
    """Peak resident memory of this very process.

    `ru_maxrss` may start from that of the parent, which therefore writes no files itself; some kernels give no other.
    """
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    found = [1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")]
    return found[0] if found else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(part: str, folder: Path, sizes: Sizes) -> dict[str, float]:
    """In this process: bytes of the model, and of the peak above the start."""
    before = peak_bytes()
    model = load(part, folder, sizes)
    size = sum(value.nbytes for value in {id(p): p for p in model.parameters()}.values())
    return {"model_bytes": size, "peak_bytes": peak_bytes() - before, "start_bytes": before}


def main(argv: list[str] | None = None) -> int:
    """Write, measure each part in a process of its own, print, and write `DIR/result.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files (removed) and result.json")
    parser.add_argument("--preset", choices=tuple(ROWS), default="stateplay-5b", help="arena is a trial of the script")
    parser.add_argument("--layers", type=int, default=30, help="blocks of the transformer")
    parser.add_argument("--text-layers", type=int, default=24, help="layers of the text encoder")
    parser.add_argument("--step", choices=("write", *PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    files, sizes = options.out / "files", Sizes(options.preset, options.layers, options.text_layers)
    if options.step == "write":
        files.mkdir(parents=True)
        write_transformer(files, sizes)
        write_text(files, sizes)
        return 0
    if options.step:
        print(json.dumps(measure(options.step, files, sizes)))
        return 0
    numbers = [f"--preset={sizes.preset}", f"--layers={sizes.layers}", f"--text-layers={sizes.text_layers}"]
    command = [sys.executable, __file__, "--out", str(options.out), *numbers, "--step"]
    subprocess.run([*command, "write"], check=True)
    results = {}
    for part in PARTS:
        done = subprocess.run([*command, part], check=True, stdout=subprocess.PIPE, text=True)
        results[part] = json.loads(done.stdout)
    shutil.rmtree(files)
    (options.out / "result.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table = Table("part", "model, GB", "peak above the start, GB", "more than the model, GB")
    for part, row in results.items():
        more = row["peak_bytes"] - row["model_bytes"]
        table.add_row(part, *(f"{value / GB:.2f}" for value in (row["model_bytes"], row["peak_bytes"], more)))
    Console().print(table)
    return 4 if any(row["peak_bytes"] > row["model_bytes"] + BOUND_BYTES for row in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
