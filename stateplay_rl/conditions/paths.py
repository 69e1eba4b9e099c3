"""Paths out of a CSV: found below the data root, or refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PureWindowsPath

from stateplay_rl.conditions.codes import RowRejected


def resolve_inside(root: Path, text: str, kind: str) -> Path:
    """The regular file that `text` names below `root`.

    Args:
        root: the data root, already resolved.
        text: the path as written; `\\` counts as `/`.
        kind: `video` or `actions`, for the reason codes.

    Returns:
        The resolved path of an existing, non-empty, regular file inside `root`.

    Raises:
        RowRejected: empty, impossible, outside the root (links included), missing, not a file, 0 bytes.
    """
    if not text.strip():
        raise RowRejected("missing_path", f"no path for {kind}")
    if "\0" in text:
        raise RowRejected("bad_path", f"{kind} path holds a NUL character")
    if PureWindowsPath(text).drive:
        raise RowRejected("outside_data_root", f"{kind} {text!r} names a Windows drive")
    try:
        path = Path(os.path.realpath(root / text.replace("\\", "/")))
        if not path.is_relative_to(root):
            raise RowRejected("outside_data_root", f"{kind} {text!r} leads to {str(path)!r}")
        info = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RowRejected(f"missing_{kind}", f"{text!r} is not there") from error
    except OSError as error:
        raise RowRejected("bad_path", f"{kind} {text!r}: {error.strerror}") from error
    if not stat.S_ISREG(info.st_mode):
        raise RowRejected("not_a_file", f"{kind} {text!r}")
    if info.st_size == 0:
        raise RowRejected(f"empty_{kind}", f"{text!r} has 0 bytes")
    return path
