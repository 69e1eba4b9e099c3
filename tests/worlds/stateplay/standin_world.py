"""A world of the stand-in checkout: its code in a folder of its own, random weights, and a world file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import nn

import stateplay_rl
from stateplay_rl.worlds.stateplay.checkout import facts_of, import_module

STANDIN = Path(__file__).with_name("standin")
DOCUMENTED = Path(__file__).with_name("documented") / "latent_state.py"
ARENA_CHECKPOINT = Path(stateplay_rl.__file__).parent / "arena" / "weights" / "latent_world.safetensors"
ARENA_SIZES = {
    "dim": 120, "num_heads": 5, "num_layers": 5, "ffn_dim": 360, "freq_dim": 64, "text_dim": 32,
    "state_dim": 64, "coupling_dim": 64,
}  # fmt: skip
SIZES = {"dim": 48, "num_heads": 2, "num_layers": 2, "ffn_dim": 64, "freq_dim": 32, "text_dim": 32}
MODEL_KWARGS = {**SIZES, "in_dim": 16, "out_dim": 16, "eps": 1e-6, "num_buttons": 11, "patch_size": [1, 2, 2]}
WAN_ONLY = {"has_image_input": False, "seperated_timestep": True}
GATE = 0.7


def copy_checkout(folder: Path, *, commit: bool = True) -> Path:
    """The stand-in's code as a checkout of its own, committed to a fresh repository."""
    shutil.copytree(STANDIN, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if commit:
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "stand-in")
    return folder


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write_checkout_world(
    folder: Path, *, gate: float = GATE, seed: int = 0, commit: bool = False, **changes: Any
) -> Path:
    """Checkout, weight files and world file in `folder`; returns the world file.

    `changes` are further keys of the world file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checkout = copy_checkout(folder / "checkout", commit=commit)
    code = facts_of(checkout).code_sha256
    models = {name: import_module(checkout, f"diffsynth.models.{name}", code) for name in (
        "stateplay_dit", "wan_video_vae", "wan_video_text_encoder", "transition_tokenizer"
    )}  # fmt: skip
    torch.manual_seed(seed)
    dit = models["stateplay_dit"].StatePlayModel(**MODEL_KWARGS, **WAN_ONLY)
    with torch.no_grad():
        for name, parameter in dit.named_parameters():
            if name.endswith(".gate"):
                parameter.fill_(gate)
    # As the trainer's logger writes: parameters only, no buffers.
    save(folder / "step-4572.safetensors", dict(dit.named_parameters()))
    vae = models["wan_video_vae"].WanVideoVAE38(16).model
    torch.save({name: p.detach() for name, p in vae.named_parameters()}, folder / "Wan2.2_VAE.pth")
    text = models["wan_video_text_encoder"].WanTextEncoder()
    torch.save({name: p.detach() for name, p in text.named_parameters()}, folder / "text.pth")
    tokenizer = models["transition_tokenizer"].LatentTransitionTokenizer(16)
    torch.save({"model": {name: p.detach() for name, p in tokenizer.named_parameters()}}, folder / "tokenizer.pt")
    (folder / "umt5-xxl").mkdir(exist_ok=True)
    (folder / "umt5-xxl" / "tokenizer.json").write_text("{}")
    world = {
        "name": "standin",
        "preset": "arena",
        "checkout": "checkout",
        "checkout_options": {
            "model_kwargs": SIZES,
            "vae_kwargs": {"z_dim": 16},
            "transition_tokenizer_kwargs": {"channels": 16},
        },
        "files": {
            "checkpoint": "step-4572.safetensors",
            "transition_tokenizer": "tokenizer.pt",
            "vae": "Wan2.2_VAE.pth",
            "text_encoder": "text.pth",
            "text_tokenizer": "umt5-xxl",
        },
        "frame_height": 64,
        "frame_width": 96,
        "compute_dtype": "float32",
        "device": "cpu",
        **changes,
    }
    (folder / "world.yaml").write_text(yaml.safe_dump(world))
    return folder / "world.yaml"


def write_documented_world(folder: Path, **changes: Any) -> Path:
    """The stand-in with the latent modules of docs/latent-modules.md, on arena's own transformer weights."""
    world = write_checkout_world(folder)
    shutil.copy(DOCUMENTED, folder / "checkout" / "diffsynth" / "models" / "latent_state.py")
    lines = yaml.safe_load(world.read_text())
    lines["checkout_options"]["model_kwargs"] = ARENA_SIZES
    lines["files"]["checkpoint"] = str(ARENA_CHECKPOINT)
    world.write_text(yaml.safe_dump({**lines, **changes}))
    return world


def save(path: Path, tensors: dict[str, nn.Parameter]) -> None:
    save_file({name: value.detach().contiguous() for name, value in tensors.items()}, path)
