"""`sprl build-conditions`: from a metadata CSV or clip folders to a sealed `conditions/` directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.conditions.assemble import Assembled, assemble
from stateplay_rl.conditions.cache import RowCache, row_key
from stateplay_rl.conditions.episodes import read_episodes
from stateplay_rl.conditions.examine import Outcome
from stateplay_rl.conditions.source import Source, SourceRow, read_clips, read_csv
from stateplay_rl.conditions.splits import select_rows
from stateplay_rl.conditions.summary import ConditionsSummary, summarise
from stateplay_rl.conditions.workers import ExamineJob, examine_rows
from stateplay_rl.config.conditions import ConditionsConfig
from stateplay_rl.errors import CorruptionError, UsageError
from stateplay_rl.evaluation.hud import HudReader
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.hud_choice import make_reader
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import require_space
from stateplay_rl.stores.conditions import DATA_ROOT, write_conditions
from stateplay_rl.stores.foreign import checked
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.refusal import refuse_overlap
from stateplay_rl.stores.sealed import sealed_object

_PROTECTED_FOLDERS = 50
# PNG at level 1 of a game picture takes about half of its raw bytes; tables about 12 kB.
_PNG_SHARE = 0.5
_TABLE_BYTES = 12_000


@dataclass(frozen=True)
class ConditionSources:
    """What is read: a CSV (with an optional data root) or a folder of clips; an optional episode index."""

    csv: Path | None = None
    data_root: Path | None = None
    clips: Path | None = None
    episodes: Path | None = None

    def read(self) -> Source:
        """The rows.

        Raises:
            UsageError: both or neither of CSV and clips, or a data root without a CSV.
            InputError: as the readers.
        """
        if (self.csv is None) == (self.clips is None):
            raise UsageError("give either --csv FILE or --clips DIR", "sprl build-conditions --help")
        if self.clips is not None:
            if self.data_root is not None:
                raise UsageError("--data-root belongs to --csv; clip folders hold their own files", "leave it out")
            return read_clips(self.clips)
        assert self.csv is not None
        return read_csv(self.csv, self.data_root)

    def inputs(self) -> dict[str, Path]:
        """Named inputs for the manifest."""
        named = {"csv": self.csv, "clips": self.clips, "episodes": self.episodes}
        return {name: path for name, path in named.items() if path is not None}


@dataclass(frozen=True)
class BuildMode:
    """How to run, none of which changes the result."""

    workers: int = 1
    resume: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class BuildResult:
    """Where the directory is, its summary, and rows whose outcome was still on hand from a killed build."""

    path: Path
    summary: ConditionsSummary
    reused_rows: int
    already_sealed: bool = False


def run(
    config: ConditionsConfig,
    sources: ConditionSources,
    out: Path,
    mode: BuildMode | None = None,
) -> BuildResult:
    """Examine the rows and write the directory.

    Args:
        config: what is accepted and how it is split.
        sources: what is read.
        out: directory to write.
        mode: workers, resume, overwrite.

    Raises:
        InputError: the source is unusable, or no row is eligible.
        CheckError: one cluster holds too many clips at every threshold.
        OutputError, UsageError, OutsideError: as `OutputDirectory.open`.
    """
    mode = mode or BuildMode()
    if mode.workers < 1:
        raise UsageError(f"--workers {mode.workers}: at least 1 is needed", "leave it out for one per core")
    reader = make_reader(config.hud, config.preset)
    source = sources.read()
    rows = select_rows(source.rows, config.select, config.split.seed)
    episodes = None if sources.episodes is None else read_episodes(sources.episodes)
    refuse_overlap(out, {}, _folders_in_use(source))
    with OutputDirectory.open(
        out,
        schema="conditions",
        version=layout.SCHEMAS["conditions"],
        command="build-conditions",
        config=config,
        inputs=sources.inputs(),
        resume=mode.resume,
        overwrite=mode.overwrite,
    ) as directory:
        if directory.already_sealed:
            summary = _read_summary(directory.path)
            return BuildResult(directory.path, summary, len(rows), already_sealed=True)
        _make_folders(directory, len(rows), config)
        cache = RowCache(directory.path)
        outcomes, reused = _examine_all(rows, source, config, directory, cache, mode.workers, reader)
        built = assemble(rows, outcomes, config, episodes)
        summary = summarise(source, len(rows), built, config, None if reader is None else reader.game)
        _write(directory, built, summary, cache, source)
        directory.seal(
            extra={
                DATA_ROOT: os.path.relpath(source.data_root, directory.path),
                "eligible": len(built.records),
            },
            seeds={"split": config.split.seed},
        )
    return BuildResult(directory.path, summary, reused)


def _examine_all(
    rows: Sequence[SourceRow],
    source: Source,
    config: ConditionsConfig,
    directory: OutputDirectory,
    cache: RowCache,
    workers: int,
    reader: HudReader | None,
) -> tuple[dict[int, Outcome], int]:
    keys = {row.row: row_key(row, source.data_root) for row in rows}
    outcomes = cache.load(keys, rows)
    reused = len(outcomes)
    job = ExamineJob(source.data_root, config.clip, directory.path, keys, reader)
    with cache, Progress("build-conditions", len(rows), unit="rows") as progress:
        progress.advance(reused)
        for outcome in examine_rows([row for row in rows if row.row not in outcomes], job, workers):
            cache.append(outcome)
            outcomes[outcome.row] = outcome
            progress.advance()
    return outcomes, reused


def _write(
    directory: OutputDirectory, built: Assembled, summary: ConditionsSummary, cache: RowCache, source: Source
) -> None:
    """Tables and summary; then only files of eligible conditions are left, and all of them on the disk."""
    write_conditions(directory, built.records, built.rejected)
    directory.write_json(layout.SUMMARY, summary.to_json())
    facts = {name: fact for condition in built.examined for name, fact in condition.files.items()}
    for folder in (layout.FRAMES_FOLDER, layout.ACTIONS_FOLDER, layout.STATES_FOLDER):
        for path in (directory.path / folder).iterdir():
            name = f"{folder}/{path.name}"
            if name in facts:
                directory.hasher.record(path, facts[name].sha256)
            else:
                path.unlink(missing_ok=True)  # of a row whose source changed since a killed build
    os.sync()
    cache.remove()


def _make_folders(directory: OutputDirectory, rows: int, config: ConditionsConfig) -> None:
    picture = config.clip.frame_width * config.clip.frame_height * 3
    require_space(directory.path, rows * int(picture * _PNG_SHARE + _TABLE_BYTES))
    for folder in (layout.FRAMES_FOLDER, layout.ACTIONS_FOLDER, layout.STATES_FOLDER):
        (directory.path / folder).mkdir(exist_ok=True)


def _folders_in_use(source: Source) -> tuple[Path, ...]:
    """Folders and files at the top of the data root that rows name: the output may not touch them.

    The data root itself is protected only when they are too many to ask one by one: a CSV in the working
    folder must not forbid every output next to it.
    """
    names = {
        path.replace("\\", "/").lstrip("/").split("/")[0]
        for row in source.rows
        for path in (row.video, row.actions, row.first_frame)
        if path and "\0" not in path
    }
    if len(names) > _PROTECTED_FOLDERS:
        return (source.data_root,)
    tops = {source.data_root / name for name in names if name not in ("", ".", "..")}
    return tuple(sorted(top for top in tops if os.path.lexists(top)))


def _read_summary(path: Path) -> ConditionsSummary:
    values = sealed_object(path, "conditions", layout.SUMMARY)
    try:
        return checked(ConditionsSummary(**{"hud_check": None, **values}))  # older summaries have no check
    except (TypeError, ValueError) as error:
        raise CorruptionError(f"{path / layout.SUMMARY} is damaged: {error}", "build again with --overwrite") from error
