"""Which output paths are refused before anything is written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from stateplay_rl.errors import OutputError
from stateplay_rl.stores import layout


def resolve_out(out: Path) -> Path:
    """Output path of a command: a relative one goes below ``RL_RUN_ROOT`` when that is set."""
    root = os.environ.get("RL_RUN_ROOT", "")
    if root and not out.expanduser().is_absolute():
        return Path(root).expanduser().absolute() / out
    return out.expanduser()


def refuse_overlap(out: Path, inputs: Mapping[str, Path], protected: Sequence[Path]) -> None:
    """Refuse an output that is, contains, or lies in an input or a protected file, symlinks resolved.

    Args:
        out: the output directory, need not exist.
        inputs: named inputs; directories or files.
        protected: further files and folders that must not be touched, such as checkpoints.

    Raises:
        OutputError: an overlap; nothing was written.
    """
    named = [
        *((f"input {name!r}", path) for name, path in inputs.items()),
        *(("protected", p) for p in protected),
    ]
    for what, path in named:
        if _inside(out, path):
            relation = "is the same as or lies inside"
        elif _inside(path, out):
            relation = "would contain"
        else:
            continue
        raise OutputError(f"output {out} {relation} {what} {path}", "choose another --out outside of all inputs")


def _inside(path: Path, folder: Path) -> bool:
    """Whether `path` is `folder` or below it, by real path and, for bind mounts, by inode."""
    real, top = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if real == top or top in real.parents:
        return True
    if not top.exists():
        return False
    return any(parent.exists() and os.path.samefile(parent, top) for parent in (real, *real.parents))


def refuse_precious(out: Path) -> None:
    """Refuse to empty a folder that no `--overwrite` can have meant.

    Raises:
        OutputError: the root, the home directory, the current directory or a parent of it, a git checkout.
    """
    real = Path(os.path.realpath(out))
    current = Path(os.path.realpath(os.getcwd()))
    home = Path(os.path.realpath(Path.home()))
    if real in (current, *current.parents, home, *home.parents) or (real / ".git").exists():
        raise OutputError(
            f"--overwrite would empty {real}: it is a home or working directory, or a checkout",
            "choose another --out",
        )


def entries(folder: Path) -> list[str]:
    """Names in a folder without the machinery's own; empty when it does not exist.

    Raises:
        OutputError: `folder` is a file.
    """
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise OutputError(f"output {folder} is a file", "choose another --out")
    return sorted(name for name in os.listdir(folder) if not layout.is_private(name))
