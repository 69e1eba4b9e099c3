"""Part `export`: everything as bf16 safetensors with hashes, in the form that `--world arena` loads."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

import stateplay_rl
from recipe.common import LineLog, Recipe
from stateplay_rl.stores.atomic import sha256_file, write_json, write_text
from stateplay_rl.worlds.native.keymap import to_training_names
from stateplay_rl.worlds.native.weights import write_safetensors

BUFFERS_IN_FLOAT32 = ("latents_mean", "latents_std")


def _rounded(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Floating-point weights in bf16; integers and the latent statistics as they are."""
    return {
        name: value.bfloat16() if value.is_floating_point() and name not in BUFFERS_IN_FLOAT32 else value
        for name, value in state.items()
    }


def part_export(recipe: Recipe) -> None:
    """Write the weight files, their hashes and the recipe's metrics into `<out>/weights`."""
    log = LineLog(recipe.out / "export.jsonl")
    folder = recipe.out / "weights"
    folder.mkdir(exist_ok=True)
    vae = torch.load(recipe.out / "vae.pt", weights_only=True)
    sft = torch.load(recipe.out / "sft.pt", weights_only=True)
    made_with = {
        "recipe": "examples/arena_base",
        "version": stateplay_rl.__version__,
        "seed": str(recipe.seed),
    }
    write_safetensors(folder / "vae.safetensors", _rounded(vae), made_with)
    write_safetensors(folder / "text_encoder.safetensors", _rounded(sft["text"]), made_with)
    write_safetensors(folder / "transition_tokenizer.safetensors", _rounded(sft["tokenizer"]), made_with)
    renamed = to_training_names(sft["transformer"])
    if renamed.unmatched:
        raise ValueError(f"no training name for {renamed.unmatched}")
    write_safetensors(
        folder / "latent_world.safetensors",
        _rounded(renamed.state),
        {**made_with, "steps": str(sft["steps"])},
    )
    write_text(folder / "text_tokenizer.json", sft["text_tokenizer"])
    files = sorted(path for path in folder.iterdir() if path.name != "weights.json")
    write_json(folder / "weights.json", {path.name: sha256_file(path) for path in files})
    write_json(folder.parent / "metrics.json", _metrics(recipe.out))
    log.write(event="exported", bytes=sum(path.stat().st_size for path in files))


def _metrics(out: Path) -> dict[str, object]:
    """The last logged line of every part that trains."""
    metrics: dict[str, object] = {}
    for part in ("vae", "sft"):
        lines = [json.loads(line) for line in (out / f"{part}.jsonl").read_text().splitlines()]
        trained = [line for line in lines if "step" in line or "tokenizer_step" in line]
        metrics[part] = {"last": trained[-1], "seconds": lines[-1]["seconds"]}
    return metrics
