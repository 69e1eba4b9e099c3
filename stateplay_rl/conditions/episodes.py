"""An episode index given by the user: which clip comes from which episode."""

from __future__ import annotations

import csv
import posixpath
from collections.abc import Mapping
from pathlib import Path

from stateplay_rl.conditions.source import SourceRow
from stateplay_rl.errors import InputError

_COLUMNS = ("clip", "episode")


def read_episodes(path: Path) -> Mapping[str, str]:
    """Episode by clip from a CSV with the columns `clip` and `episode`.

    A clip is named as in the source: the path in `video`, or the name of the clip folder.

    Raises:
        InputError: not there, not such a CSV, or a clip with two episodes.
    """
    episodes: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{path} lacks the columns {', '.join(missing)}", "first line: clip,episode")
            for values in reader:
                clip, episode = normalised(values["clip"] or ""), (values["episode"] or "").strip()
                if not clip or not episode:
                    raise InputError(f"{path}, line {reader.line_num}: clip or episode is empty", "fill it in")
                if episodes.setdefault(clip, episode) != episode:
                    raise InputError(f"{path}, line {reader.line_num}: {clip} has two episodes", "keep one")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read the episode index {path}: {error}", "it must be a UTF-8 CSV") from error
    return episodes


def normalised(clip: str) -> str:
    """A clip's path in the one form that is compared."""
    return posixpath.normpath(clip.strip().replace("\\", "/")) if clip.strip() else ""


def episode_of(row: SourceRow, episodes: Mapping[str, str]) -> str | None:
    """Episode of a row, None where the index does not name its clip."""
    return episodes.get(normalised(row.name))
