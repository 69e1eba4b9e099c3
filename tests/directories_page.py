"""What `docs/directories.md` says lies in each kind of directory, for tests that hold it against real ones."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "directories.md"
EVERYWHERE = "In every directory"
PLACEHOLDER = re.compile(r"<[^>]+>")


def documented(kind: str, text: str | None = None) -> list[str]:
    """Patterns of the file names in the first column of a kind's table, and of what every directory holds.

    Args:
        kind: how the section's title begins, for example ``run`` for "`run/` (train-nft)".
        text: the page; None reads it.

    Raises:
        KeyError: the page has no such section.
    """
    sections = {}
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8") if text is None else text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        rows = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
        names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
        sections[title.lstrip("`")] = [PLACEHOLDER.sub("*", name) for name in names]
    found = next((names for title, names in sections.items() if re.match(rf"{kind}\b", title)), None)
    if found is None:
        raise KeyError(kind)
    return [*sections[EVERYWHERE], *found]


def undocumented(folder: Path, kind: str) -> list[str]:
    """Files below a directory that the page does not name; a pattern that ends with ``/`` covers what lies below."""
    patterns = documented(kind)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]

    def is_told(name: str) -> bool:
        return any(fnmatch(name, f"{pattern}*" if pattern.endswith("/") else pattern) for pattern in patterns)

    return sorted(name for name in names if not name.startswith(".sprl") and not is_told(name))


def never_there(folder: Path, kind: str) -> list[str]:
    """Names without placeholder that the page gives for this kind and that the directory does not hold."""
    plain = [name for name in documented(kind) if "*" not in name]
    return sorted(name for name in plain if not (folder / name).exists())
