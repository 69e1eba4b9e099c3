"""Rows to examine: from the metadata CSV, or from folders that hold one clip each."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stateplay_rl.conditions.codes import warning
from stateplay_rl.errors import InputError
from stateplay_rl.stores.foreign import parse_json

COLUMNS = ("video", "action", "distribution", "prompt", "strategy", "category")
VIDEO_FILE = "video.mp4"
ACTIONS_FILE = "actions.parquet"
FIRST_FRAME_FILE = "first_frame.png"
PROMPT_FILE = "prompt.txt"
METADATA_FILE = "metadata.json"
_MAX_SIDE_FILE_BYTES = 2**20
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class SourceRow:
    """One row of the source, nothing checked yet but its form.

    Args:
        row: number of the data row, from 1.
        name: what messages call it: the video's path, or the clip folder.
        video: path below the data root, None where the source has no video for it.
        actions: path of the action table below the data root.
        first_frame: path of a first-frame picture, for rows without video.
        distribution: mechanics class as written; `strategy`, `npc_category`, `prompt` as written.
        problem: reason code and detail when the row is malformed, else empty.
        warnings: oddities already known.
    """

    row: int
    name: str
    video: str | None = None
    actions: str = ""
    first_frame: str | None = None
    distribution: str = ""
    prompt: str = ""
    strategy: str = ""
    npc_category: str = ""
    problem: tuple[str, str] | tuple[()] = ()
    warnings: tuple[str, ...] = ()

    @property
    def mechanics_class(self) -> str:
        """The class in lower case: the source mixes `normal`, `Macro_success`, `macro_fail`."""
        return self.distribution.strip().lower()


@dataclass(frozen=True)
class Source:
    """All rows, the folder their paths are relative to, and columns that nobody reads."""

    rows: tuple[SourceRow, ...]
    data_root: Path
    ignored_columns: tuple[str, ...] = ()


def read_csv(path: Path, data_root: Path | None = None) -> Source:
    """Read a metadata CSV: UTF-8 with or without BOM, any line ends.

    Args:
        path: the CSV.
        data_root: folder that its paths are relative to; default the CSV's own folder.

    Raises:
        InputError: not there, not UTF-8, not a CSV, columns missing or doubled, no rows.
    """
    root = path.parent if data_root is None else data_root
    if not path.is_file():
        raise InputError(f"{path} is not a file", "give the metadata CSV with --csv")
    if not root.is_dir():
        raise InputError(f"the data root {root} is not a folder", "give it with --data-root")
    with path.open("rb") as file:
        if file.read(2) in _UTF16_MARKS:
            raise InputError(f"{path} is UTF-16, UTF-8 is needed", f"iconv -f UTF-16 -t UTF-8 {path} > utf8.csv")
    with path.open(encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            _check_header(path, header)
            rows = _duplicates_marked(_csv_rows(reader, header))
        except UnicodeDecodeError as error:
            found = f"{path} is not UTF-8: byte 0x{error.object[error.start]:02x} after line {reader.line_num}"
            raise InputError(found, f"iconv -f WINDOWS-1252 -t UTF-8 {path} > utf8.csv") from error
        except csv.Error as error:
            hint = "is a quotation mark open? fields with commas or line breaks need quotes on both ends"
            raise InputError(f"{path}, line {reader.line_num}: {error}", hint) from error
    if not rows:
        raise InputError(f"{path} has a header and no rows", "give a CSV with at least one clip")
    ignored = tuple(name for name in header if name not in COLUMNS)
    return Source(rows, root.resolve(), ignored)


def _check_header(path: Path, header: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        found = ", ".join(header)[:300] or "nothing"
        raise InputError(f"{path} lacks the columns {', '.join(missing)}; found: {found}", _header_hint(header))
    twice = [name for name in COLUMNS if header.count(name) > 1]
    if twice:
        raise InputError(f"{path} has the column {', '.join(twice)} twice", "keep one of them")


def _header_hint(header: Sequence[str]) -> str:
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        return "the fields must be separated by commas"
    return f"the first line must name {','.join(COLUMNS)}"


def _csv_rows(reader: Iterator[list[str]], header: Sequence[str]) -> Iterator[SourceRow]:
    at = {name: header.index(name) for name in COLUMNS}
    row = 0
    for values in reader:
        if not values:
            continue
        row += 1
        if len(values) != len(header):
            detail = f"{len(values)} fields, the header has {len(header)}"
            yield SourceRow(row, values[0], problem=("malformed_row", detail))
            continue
        video, actions = values[at["video"]], values[at["action"]]
        yield SourceRow(
            row=row,
            name=video,
            video=video,
            actions=actions,
            distribution=values[at["distribution"]],
            prompt=values[at["prompt"]],
            strategy=values[at["strategy"]],
            npc_category=values[at["category"]],
            warnings=(warning("backslash_path"),) if "\\" in video + actions else (),
        )


def _duplicates_marked(rows: Iterator[SourceRow]) -> tuple[SourceRow, ...]:
    first: dict[tuple[str | None, ...], int] = {}
    marked = []
    for row in rows:
        same = (row.video, row.actions, row.distribution, row.prompt, row.strategy, row.npc_category)
        earlier = first.setdefault(same, row.row)
        if earlier != row.row and not row.problem:
            row = replace(row, problem=("duplicate_row", f"equals row {earlier}"))
        marked.append(row)
    return tuple(marked)


def read_clips(folder: Path) -> Source:
    """Rows from folders `<folder>/<clip>/`: action table, prompt, metadata, and a video or a first frame.

    A clip folder with a `video.mp4` is treated as a CSV row is; without one, `first_frame.png` is used and
    there is no reference.

    Raises:
        InputError: not a folder, or no clip folder in it.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "give a folder of clip folders with --clips")
    clips = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not clips:
        needed = f"{ACTIONS_FILE}, {PROMPT_FILE}, {METADATA_FILE}, and {FIRST_FRAME_FILE} or {VIDEO_FILE}"
        raise InputError(f"{folder} holds no clip folders", f"each needs {needed}")
    return Source(tuple(_clip_row(number, clip) for number, clip in enumerate(clips, 1)), folder.resolve())


def _clip_row(row: int, clip: Path) -> SourceRow:
    try:
        metadata = _metadata(clip / METADATA_FILE)
        prompt = _side_text(clip / PROMPT_FILE)
        if prompt is not None:
            prompt = prompt.removesuffix("\n").removesuffix("\r")  # the end of the file's line, not of the text
    except _SideFileError as error:
        return SourceRow(row, clip.name, problem=(error.code, error.detail))
    stated = metadata.get("prompt", "")
    differs = prompt is not None and bool(stated) and prompt.strip() != stated.strip()
    has_video = (clip / VIDEO_FILE).exists()
    return SourceRow(
        row=row,
        name=clip.name,
        video=f"{clip.name}/{VIDEO_FILE}" if has_video else None,
        actions=f"{clip.name}/{ACTIONS_FILE}",
        first_frame=None if has_video else f"{clip.name}/{FIRST_FRAME_FILE}",
        distribution=metadata.get("distribution", ""),
        prompt=stated if prompt is None else prompt,
        strategy=metadata.get("strategy", ""),
        npc_category=metadata.get("category", ""),
        warnings=(warning("prompt_differs"),) if differs else (),
    )


class _SideFileError(Exception):
    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def _metadata(path: Path) -> dict[str, str]:
    text = _side_text(path, "bad_metadata")
    if text is None:
        raise _SideFileError("bad_metadata", f"{path.name} is missing")
    try:
        values: Any = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise _SideFileError("bad_metadata", f"{path.name}: {error}"[:200]) from error
    if not isinstance(values, dict):
        raise _SideFileError("bad_metadata", f"{path.name} is not a JSON object")
    wrong = [name for name in COLUMNS if not isinstance(values.get(name, ""), str)]
    if wrong:
        raise _SideFileError("bad_metadata", f"{path.name}: {', '.join(wrong)} must be text")
    return {name: values[name] for name in COLUMNS if name in values}


def _side_text(path: Path, code: str = "bad_prompt_file") -> str | None:
    """Text of a small file of a clip folder; None when it does not exist. Links must not leave the folder."""
    try:
        if not path.exists():
            return None
        if not path.is_file() or not path.resolve().is_relative_to(path.parent.parent.resolve()):
            raise _SideFileError(code, f"{path.name} is not a file inside the data root")
        if path.stat().st_size > _MAX_SIDE_FILE_BYTES:
            raise _SideFileError(code, f"{path.name} has {path.stat().st_size} bytes")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise _SideFileError(code, f"{path.name}: {error}"[:200]) from error
