"""Train arena's base model from nothing: text side, VAE, transition tokenizer, then SFT on a glitched mixture.

    python examples/arena_base/train_base.py vae  --out build/arena_base
    torchrun --nproc_per_node 2 examples/arena_base/train_base.py sft --out build/arena_base   # or python, one rank
    python examples/arena_base/train_base.py export check --out build/arena_base

Each part reads the parts before it from `--out`, is seeded, and writes its weights (`<part>.pt`) and a line log
(`<part>.jsonl`). The committed weights took 3 minutes (VAE, one GPU) and 16 minutes (sft, two GPUs); a CPU needs days
(`--scale 0.0003` is a smoke run). Their logs and figures are in `results/`, what was tried in docs/decisions/.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from recipe import Recipe, part_check, part_export, part_sft, part_vae

DEFAULT_DEVICE = "cuda" if torch.cuda.device_count() else "cpu"
PARTS = {"vae": part_vae, "sft": part_sft, "export": part_export, "check": part_check}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=sorted(PARTS), nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies steps and data; 0.01 is a smoke run")
    parser.add_argument("--seed", type=int, default=20260)
    parser.add_argument("--device", default=DEFAULT_DEVICE)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.benchmark = True
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device(arguments.device, rank) if arguments.device == "cuda" else torch.device(arguments.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    recipe = Recipe(arguments.out, arguments.seed, arguments.scale, device, rank, ranks)
    for part in arguments.part:
        PARTS[part](recipe)


if __name__ == "__main__":
    main()
