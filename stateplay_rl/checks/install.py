"""`verify install`: does this installation compute what it must? About a minute on a CPU, no network.

Each check is a function that returns what it measured or raises CheckError; a missing extra skips what
needs it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from stateplay_rl.checks.install_mathematics import MATHEMATICS
from stateplay_rl.checks.lines import CheckFunction, CheckLine, NotChecked, require, run_checks
from stateplay_rl.errors import CheckError
from stateplay_rl.nft import (
    randomness,
    schedule,
    solvers,
)

WORLD_EXTRA = ("diffusers", "peft", "tokenizers", "transformers")
REQUIRED = ("torch", "numpy", "safetensors", "pyarrow", "av", "accelerate", "pydantic", "PIL")
TWO_PROCESSES_SECONDS = 300
GOLDEN_FOLDER = Path(__file__).parent / "golden_data"
GOLDEN_FILES = 5
WEIGHT_TOLERANCE = 1e-6


def need_world_extra() -> None:
    """Raise NotChecked, naming what is missing, unless the `world` extra is installed."""
    missing = [name for name in WORLD_EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise NotChecked(f"needs the world extra ({', '.join(missing)} missing): pip install 'stateplay-rl[world]'")


def check_libraries() -> str:
    """Every required library is importable; versions are those of the manifests."""
    from stateplay_rl.stores.environment import software_versions

    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    require(not missing, f"required libraries are missing: {', '.join(missing)}")
    versions = software_versions()
    return ", ".join(f"{name} {value}" for name, value in versions.items() if value and name != "platform")


def check_storage() -> str:
    """A sealed directory reads back; one changed byte is found."""
    from stateplay_rl.config.verify import InstallConfig
    from stateplay_rl.stores.layout import SCHEMAS
    from stateplay_rl.stores.manifest import OutputDirectory
    from stateplay_rl.stores.sealed import file_problems, read_manifest

    with tempfile.TemporaryDirectory(prefix="sprl-verify-") as folder:
        out = Path(folder) / "sealed"
        with OutputDirectory.open(
            out,
            schema="verify",
            version=SCHEMAS["verify"],
            command="verify",
            config=InstallConfig(),
            inputs={},
            resume=False,
            overwrite=False,
        ) as directory:
            directory.write_text("a.txt", "abc")
            directory.seal()
        require(not list(file_problems(read_manifest(out))), "a fresh sealed directory does not verify")
        (out / "a.txt").write_text("abd")
        require(len(list(file_problems(read_manifest(out)))) == 1, "a changed byte is not found")
    return "sealing works and a changed byte is found"


def check_video() -> str:
    """An H.264 file of 9 pictures decodes to 9 pictures of nearly the same colours."""
    from stateplay_rl.stores.video import decode_mp4, encode_mp4

    levels = np.linspace(40, 200, 9).astype(np.uint8)
    frames = np.broadcast_to(levels[:, None, None, None], (9, 32, 48, 3)).copy()
    with tempfile.TemporaryDirectory(prefix="sprl-verify-") as folder:
        encode_mp4(Path(folder) / "a.mp4", frames, 20.0)
        decoded = decode_mp4(Path(folder) / "a.mp4")
    require(decoded.shape == frames.shape, f"{decoded.shape} decoded, {frames.shape} encoded")
    error = int(np.abs(decoded.astype(int) - frames.astype(int)).max())
    require(error <= 6, f"colours differ by {error} levels after encoding")
    return f"9 of 9 pictures decoded, largest difference {error} levels"


def check_arena_weights() -> str:
    """The packaged world's weight files are those that its list names by hash."""
    from stateplay_rl.worlds import world_files

    folder = world_files.arena_weights_folder()
    world_files.verify_weights(folder)
    return f"weights in {folder} match {world_files.WEIGHT_HASHES}"


def check_golden() -> str:
    """The small golden files that come with the package: loss, advantage, schedule, old policy, prompts.

    They were computed by other code than this one; `verify golden FOLDER` takes all of them, or your own.
    """
    from stateplay_rl.checks.golden import run_golden

    lines = run_golden(GOLDEN_FOLDER)
    bad = [f"{line.file}: {line.detail}" for line in lines if line.status != "passed"]
    require(not bad, "; ".join(bad))
    require(len(lines) >= GOLDEN_FILES, f"{len(lines)} golden files in {GOLDEN_FOLDER}, {GOLDEN_FILES} belong there")
    return f"{len(lines)} golden files agree"


def check_gradient_map() -> str:
    """Each mode trains its parameters and no others; see `gradient_map`."""
    need_world_extra()
    from stateplay_rl.checks.gradient_map import describe_gradient_map

    return describe_gradient_map()


def check_sampling() -> str:
    """Sampling a tiny world twice gives the same bits, and a batch of 3 equals 3 batches of 1."""
    need_world_extra()
    from stateplay_rl.checks import tiny_world

    model = tiny_world.tiny_transformer()
    conditions = tiny_world.tiny_conditions(3, 3)

    @torch.no_grad()
    def sample(rows: slice) -> torch.Tensor:
        own = conditions.rows(rows)
        keys = [randomness.DrawKey(0, "initial_noise", candidate=k) for k in range(3)][rows]
        noise = torch.cat([randomness.normal(key, tiny_world.latent_shape(1, 3)) for key in keys])
        return solvers.solve(
            solvers.Euler,
            lambda x, sigma_B: tiny_world.velocity(model, x, sigma_B, own),
            noise,
            schedule.sampling_sigmas(4),
            solvers.pin_first_slot(own.first_latent_BC1HW),
        )

    together = sample(slice(0, 3))
    require(torch.equal(together, sample(slice(0, 3))), "two samplings of the same seeds differ")
    require(torch.equal(together[:, :, :1], conditions.first_latent_BC1HW), "slot 0 is not the first frame")
    alone = torch.cat([sample(slice(k, k + 1)) for k in range(3)])
    error = float((together - alone).abs().max() / alone.abs().max())
    require(error < 1e-5, f"a batch of 3 differs from 3 batches of 1 by {error:.1e}")
    return f"bitwise repeatable; batch of 3 against 3 of 1: {error:.1e}"


def check_two_processes() -> str:
    """Three updates under one and under two processes (gloo) give the same weights to 1e-6."""
    need_world_extra()
    from safetensors import safe_open

    worker = ["-m", "stateplay_rl.checks.two_processes"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    with tempfile.TemporaryDirectory(prefix="sprl-verify-") as folder:
        files = [Path(folder) / f"{count}.safetensors" for count in (1, 2)]
        _run_python([*worker, str(files[0])])
        _run_python([*launch, *worker, str(files[1])])
        loaded = []
        for count, file in zip(("1", "2"), files, strict=True):
            with safe_open(str(file), framework="pt") as handle:
                found = (handle.metadata() or {}).get("processes")
                require(found == count, f"{found} processes took part instead of {count}")
                loaded.append({key: handle.get_tensor(key) for key in handle.keys()})  # noqa: SIM118
    one, two = loaded
    require(one.keys() == two.keys() and len(one) > 0, "the two runs trained different parameters")
    moved = any(bool((one[name] != one[name.replace("live.", "old.", 1)]).any()) for name in one)
    require(moved, "three updates moved nothing: equal weights would prove nothing")
    error = max(float((one[name] - two[name]).abs().max()) for name in one)
    require(error <= WEIGHT_TOLERANCE, f"weights under two processes differ by {error:.1e}")
    return f"weights under one and two processes differ by {error:.1e} at most"


def _run_python(arguments: Sequence[str]) -> None:
    from stateplay_rl.checks.subprocesses import cpu_environment

    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(
            command, env=cpu_environment(), capture_output=True, text=True, timeout=TWO_PROCESSES_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise CheckError(
            f"no end after {TWO_PROCESSES_SECONDS} s: {' '.join(command)}", "run that command by itself"
        ) from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckError(f"exit {done.returncode} of {' '.join(command)}: {last}", "run that command by itself")


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("libraries", check_libraries),
    *MATHEMATICS,
    ("storage", check_storage),
    ("video", check_video),
    ("arena_weights", check_arena_weights),
    ("golden", check_golden),
    ("gradient_map", check_gradient_map),
    ("sampling", check_sampling),
    ("two_processes", check_two_processes),
)


def run_install() -> list[CheckLine]:
    """All checks of an installation, in order."""
    return run_checks(CHECKS)
