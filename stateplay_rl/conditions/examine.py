"""Examine one row: every check, then the condition's own files. Runs in worker processes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

from PIL import Image

from stateplay_rl.conditions.actions import ActionTable, read_action_table
from stateplay_rl.conditions.artefacts import FileFact, write_artefacts
from stateplay_rl.conditions.clusters import EVIDENCE_STATES, Evidence, gather_evidence
from stateplay_rl.conditions.codes import RowRejected, warning
from stateplay_rl.conditions.paths import resolve_inside
from stateplay_rl.conditions.source import SourceRow
from stateplay_rl.conditions.video import check_length, check_picture_size, read_video
from stateplay_rl.config.conditions import ClipRules
from stateplay_rl.evaluation.data_check import ElementCheck, check_first_frame
from stateplay_rl.evaluation.hud import HudReader
from stateplay_rl.stores.atomic import sha256_file, sha256_json
from stateplay_rl.stores.conditions import hash_actions
from stateplay_rl.stores.hashing import hash_frames
from stateplay_rl.worlds.preparation import (
    BLANK_PROMPT,
    action_bin_edges,
    hold_actions,
    is_blank,
    prepare_first_frame,
    usable_frames,
)

_ID_CHARACTERS = 24


@dataclass(frozen=True)
class Examined:
    """An eligible condition before clusters, pool and order are known.

    Args:
        condition_id: hash of picture, buttons, prompt, length and video: what a candidate may depend on.
        clip: path of the video below the data root, None without one.
        source_frames: frames of the source; `frames` of them are used.
        source_size: width and height of the source's picture, before it was scaled and cropped.
        files: the artefacts that were written, by relative name.
        hud: the first frame's HUD against the state columns, by element; empty if there was nothing to compare.
    """

    condition_id: str
    clip: str | None
    prompt: str
    fps: float
    source_frames: int
    source_size: tuple[int, int]
    frames: int
    latent_frames: int
    action_rows: int
    action_bin_edges: tuple[tuple[int, int], ...]
    first_frame_sha256: str
    actions_sha256: str
    warnings: tuple[str, ...]
    evidence: Evidence
    files: dict[str, FileFact]
    hud: tuple[ElementCheck, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a row: a condition, or a reason. `code` is empty for a condition.

    `key` says which source this is the outcome of (see `cache.row_key`).
    """

    row: int
    key: str
    code: str = ""
    detail: str = ""
    condition: Examined | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Outcome:
        """The outcome that `to_json` wrote.

        Raises:
            TypeError, KeyError, ValueError: other values.
        """
        condition = values["condition"]
        if condition is None:
            return cls(**values)
        evidence = Evidence(**{**condition["evidence"], "states": tuple(condition["evidence"]["states"])})
        rebuilt = {
            **condition,
            "action_bin_edges": tuple((start, end) for start, end in condition["action_bin_edges"]),
            "source_size": tuple(condition["source_size"]),
            "warnings": tuple(condition["warnings"]),
            "evidence": evidence,
            "files": {name: FileFact(**fact) for name, fact in condition["files"].items()},
            "hud": tuple(ElementCheck(**check) for check in condition["hud"]),
        }
        return cls(**{**values, "condition": Examined(**rebuilt)})


def examine_row(
    row: SourceRow, key: str, data_root: Path, rules: ClipRules, out: Path, reader: HudReader | None = None
) -> Outcome:
    """Check a row and write its first frame, action table and states.

    Args:
        row: the row.
        key: stored with the outcome.
        data_root: resolved folder that its paths are relative to.
        rules: what is accepted.
        out: the conditions directory being written.
        reader: reads the first frame's HUD, to be compared with the state columns; None: not compared.

    Returns:
        A condition or a reason; a bad row never raises.

    Raises:
        OutsideError: the disk is full or read-only.
    """
    try:
        return Outcome(row.row, key, condition=_examine(row, data_root, rules, out, reader))
    except RowRejected as reason:
        return Outcome(row.row, key, reason.code, reason.detail)


def _examine(row: SourceRow, data_root: Path, rules: ClipRules, out: Path, reader: HudReader | None) -> Examined:
    if row.problem:
        raise RowRejected(*row.problem)
    if not row.mechanics_class:
        raise RowRejected("missing_class", "column distribution is empty")
    if len(row.prompt) > rules.max_prompt_characters:
        raise RowRejected("prompt_too_long", f"{len(row.prompt)} characters")
    # Cheap checks first: a missing action table must not cost a decoded video.
    actions_path = resolve_inside(data_root, row.actions, "actions")
    video_path = None if row.video is None else resolve_inside(data_root, row.video, "video")
    table = read_action_table(actions_path, rules)
    rows = len(table.frame_ids)
    picture, source_frames, warnings = _picture_and_length(row, data_root, video_path, rows, rules)
    if source_frames != rows:
        raise RowRejected("rows_not_frames", f"{rows} action rows, {source_frames} frames")
    first_frame = prepare_first_frame(picture, rules.frame_width, rules.frame_height)
    held = hold_actions(table.raw_RK, rules.action_window)
    frames = usable_frames(source_frames, rules.temporal_factor)
    latent_frames = (frames - 1) // rules.temporal_factor + 1
    if held.dropped_presses:
        warnings.append(warning("presses_dropped", held.dropped_presses))
    if frames < source_frames:
        warnings.append(warning("video_cut", source_frames - frames))
    if row.mechanics_class not in rules.known_classes:
        warnings.append(warning("unknown_class"))
    hud = check_first_frame(reader, first_frame, table.states) if reader is not None else ()
    disagreeing = sum(check.agrees is False for check in hud)
    if disagreeing:
        warnings.append(warning("hud_disagrees", disagreeing))
    blank = is_blank(row.prompt)
    if blank:
        warnings.append(warning("blank_prompt"))
    condition = Examined(
        condition_id="",
        clip=None if video_path is None else video_path.relative_to(data_root).as_posix(),
        prompt=BLANK_PROMPT if blank else row.prompt,
        fps=rules.fps,
        source_frames=source_frames,
        source_size=picture.size,
        frames=frames,
        latent_frames=latent_frames,
        action_rows=rows,
        action_bin_edges=action_bin_edges(rows, latent_frames),
        first_frame_sha256=hash_frames(first_frame),
        actions_sha256=hash_actions(table.raw_RK),
        warnings=tuple(sorted((*row.warnings, *table.warnings, *warnings))),
        evidence=gather_evidence(first_frame, table.raw_RK, rules.action_window, _initial_states(table)),
        files={},
        hud=hud,
    )
    condition_id = _content_id(condition, video_path)
    files = write_artefacts(out, condition_id, first_frame, table, held.held_RK)
    return replace(condition, condition_id=condition_id, files=files)


def _picture_and_length(
    row: SourceRow, data_root: Path, video_path: Path | None, action_rows: int, rules: ClipRules
) -> tuple[Image.Image, int, list[str]]:
    """First picture, number of frames, warnings. Without a video the action rows say how many frames."""
    warnings: list[str] = []
    if video_path is not None:
        reading = read_video(video_path, rules)
        picture = Image.fromarray(reading.first_frame_hwC)
        frames = reading.frames
        if not reading.declared:
            warnings.append(warning("frames_undeclared"))
    else:
        picture = _read_picture(row, data_root, rules)
        frames = action_rows
        check_length(frames, rules)
        warnings.append(warning("no_video"))
    return picture, frames, warnings


def _read_picture(row: SourceRow, data_root: Path, rules: ClipRules) -> Image.Image:
    path = resolve_inside(data_root, row.first_frame or "", "first_frame")
    try:
        with catch_warnings():
            simplefilter("ignore", Image.DecompressionBombWarning)  # ours is the stricter limit
            image = Image.open(path, formats=("PNG", "JPEG", "BMP", "WEBP"))
        with image:
            check_picture_size(*image.size, rules)  # from the header, before any pixel is decoded
            return image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise RowRejected("unreadable_first_frame", str(error)[:200]) from error


def _initial_states(table: ActionTable) -> tuple[float | None, ...]:
    return tuple(float(table.states[name][0]) if name in table.states else None for name in EVIDENCE_STATES)


def _content_id(condition: Examined, video_path: Path | None) -> str:
    content = {
        "first_frame": condition.first_frame_sha256,
        "actions": condition.actions_sha256,
        "action_rows": condition.action_rows,
        "frames": condition.frames,
        "prompt": condition.prompt,
        "video": None if video_path is None else sha256_file(video_path),
    }
    return sha256_json(content)[:_ID_CHARACTERS]
