"""`verify golden`: whatever golden files a folder holds, held against this package, a line per file.

The format is that of the files that ship with the tests: any subset, any number of cases, any sizes, read
from names, shapes and the config files beside them. A file that cannot be checked is `skipped` with its
reason and never counts as passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from stateplay_rl.checks import golden_files, golden_networks
from stateplay_rl.checks.comparison import GoldenFolder, GoldenLine
from stateplay_rl.errors import InputError, SprlError

GoldenCheck = Callable[[GoldenFolder, str], GoldenLine]

CHECKS: Mapping[str, GoldenCheck] = {
    "nft_loss.safetensors": golden_files.check_loss,
    "group_advantage.json": golden_files.check_advantage,
    "old_policy_decay.json": golden_files.check_decay,
    "wan_schedule.safetensors": golden_files.check_schedule,
    "action_bins.safetensors": golden_files.check_action_bins,
    "action_files.json": golden_files.check_action_files,
    "first_frames.json": golden_files.check_first_frames,
    "prompt_cleaning.json": golden_files.check_prompts,
    "wan22_latent_stats.json": golden_files.check_latent_statistics,
    "explicit_state_checkpoint.safetensors": golden_networks.check_explicit_state,
    "backbone_io.safetensors": golden_networks.check_backbone,
    "text_encoder_io.safetensors": golden_networks.check_text_encoder,
    "vae_io.safetensors": golden_networks.check_vae,
}

PARTS: Mapping[str, str] = {
    "backbone_weights.safetensors": "backbone_io.safetensors",
    "backbone_config.json": "backbone_io.safetensors",
    "text_encoder_weights.safetensors": "text_encoder_io.safetensors",
    "vae_weights.safetensors": "vae_io.safetensors",
    "vae_config.json": "vae_io.safetensors",
}
"""Files that are read together with another one; without it there is nothing to compare."""


def golden_names(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the golden files in a folder: those with a check of their own, and parts of others.

    Raises:
        InputError: no such folder, or nothing in it is a golden file.
    """
    if not folder.is_dir():
        raise InputError(f"golden folder {folder} is not a directory", "give the folder that holds the files")
    found = [name for name in CHECKS if (folder / name).is_file()]
    parts = [name for name in PARTS if (folder / name).is_file()]
    if not found and not parts:
        raise InputError(f"{folder} holds no golden file", f"known names: {', '.join([*CHECKS, *PARTS])}")
    return found, parts


def run_golden(folder: Path, clips: Path | None = None) -> list[GoldenLine]:
    """Check every golden file of a folder.

    Args:
        folder: holds any subset of the files named in `CHECKS` and `PARTS`; other files are left alone.
        clips: folder of the real clips that some files describe; None skips what needs them.

    Returns:
        A line per golden file, in a fixed order.

    Raises:
        InputError: no such folder, or nothing in it is a golden file.
    """
    found, parts = golden_names(folder)
    lines = [_run(CHECKS[name], GoldenFolder(folder, clips), name) for name in found]
    for name in parts:
        if PARTS[name] not in found:
            lines.append(GoldenLine.skipped(name, f"{PARTS[name]} is not here: nothing to compare with"))
    return lines


def _run(check: GoldenCheck, folder: GoldenFolder, name: str) -> GoldenLine:
    started = time.monotonic()
    try:
        line = check(folder, name)
    except (SprlError, LookupError, TypeError, ValueError, RuntimeError, OSError) as error:
        # The files come from other code: whatever does not fit is a failed line that says what it met.
        line = GoldenLine.failed(name, f"{type(error).__name__}: {error}".splitlines()[0])
    return replace(line, seconds=round(time.monotonic() - started, 3))
