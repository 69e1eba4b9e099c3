"""What a manifest says about the software and hardware that wrote it, without importing the libraries."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from stateplay_rl import __version__

LIBRARIES = (
    "torch",
    "accelerate",
    "diffusers",
    "transformers",
    "peft",
    "safetensors",
    "numpy",
    "pyarrow",
    "av",
)
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def library_versions() -> dict[str, str | None]:
    """Installed versions of the libraries that decide numbers; None when one is not installed."""
    versions: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


@cache
def git_commit() -> str | None:
    """Commit of the checkout that this package runs from, with ``+changes`` when it is dirty; else None."""
    if not (_PACKAGE_ROOT / ".git").exists():
        return None
    try:
        commit = _git("rev-parse", "HEAD")
        # -uno: untracked data next to the checkout says nothing about the code.
        dirty = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if dirty else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_PACKAGE_ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


@cache
def cuda_version() -> str | None:
    """CUDA version that torch was built for, read from its version file; None for a CPU build."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match.group(1) if match else None


@cache
def driver_version() -> str | None:
    """NVIDIA kernel driver version, None without one."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return match.group(1) if match else None


def gpu_names() -> tuple[str, ...]:
    """Names of the GPUs: those torch sees when it is loaded, else those of the driver."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    names: list[str] = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", file.read_text(), re.MULTILINE)
        if match:
            names.append(match.group(1).strip())
    return tuple(names)


def world_size() -> int:
    """Number of processes of this job (torch.distributed's environment variable)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def software_versions() -> dict[str, Any]:
    """Everything about the software for a manifest's `versions`."""
    return {
        "sprl": __version__,
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}",
        **library_versions(),
        "cuda": cuda_version(),
        "driver": driver_version(),
    }
