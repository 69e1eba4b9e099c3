"""A trained policy as a checkpoint of the training repository: the SFT file with the trained tensors replaced.

    python examples/export_checkpoint.py --world WORLD.yaml --policy RUN/policy/SHA.safetensors --out FILE.safetensors

Every other tensor keeps its name, dtype, shape and bits.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file

from stateplay_rl.worlds.native.export import write_training_checkpoint
from stateplay_rl.worlds.world_files import resolve_world


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, write, say what changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--world", required=True, help="arena, or the world file that the policy was trained in")
    parser.add_argument("--policy", type=Path, required=True, help="exported policy")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--keep-precision", action="store_true", help="store trained tensors in float32")
    arguments = parser.parse_args(argv)
    world = resolve_world(arguments.world)
    done = write_training_checkpoint(
        world.files.checkpoint,
        load_file(arguments.policy),
        arguments.out,
        translations=tuple(sorted(world.key_map.items())),
        keep_precision=arguments.keep_precision,
    )
    print(f"{done.path}: {done.tensors} tensors, {len(done.replaced)} from the policy, {len(done.added)} added")
    if done.rounded:
        print(f"{len(done.rounded)} of them rounded to the checkpoint's dtype; --keep-precision keeps float32")
    print(f"sha256 {done.sha256}")


if __name__ == "__main__":
    main()
