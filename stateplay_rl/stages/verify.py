"""`sprl verify install|golden|dir`: run the checks, write `verify.json`, say whether all passed.

`verify signal` stands in `verify_signal.py` and shares the summary and the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stateplay_rl.checks.comparison import GoldenLine
from stateplay_rl.checks.lines import CheckLine
from stateplay_rl.config.verify import DirectoryConfig, GoldenConfig, InstallConfig
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import OutputDirectory, resolve_out

VerifyConfig = InstallConfig | GoldenConfig | DirectoryConfig
VerifyLine = CheckLine | GoldenLine


@dataclass(frozen=True)
class VerifySummary:
    """Result of a verification.

    Args:
        kind: `install`, `golden`, `dir` or `signal`.
        out: the directory that holds `verify.json`.
        lines: one a check or file.
        words: what the numbers mean, in sentences; empty where the lines say it all.
    """

    kind: str
    out: Path
    lines: tuple[VerifyLine, ...]
    words: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[VerifyLine, ...]:
        """The lines that failed."""
        return tuple(line for line in self.lines if line.status == "failed")

    @property
    def nothing_checked(self) -> bool:
        """Whether every line was skipped: then nothing is known."""
        return all(line.status == "skipped" for line in self.lines)

    @property
    def passed(self) -> bool:
        """Whether nothing failed and something passed."""
        return not self.failed and not self.nothing_checked


def default_out() -> Path:
    """`verify-<utc>`, below RL_RUN_ROOT when that is set; milliseconds keep two runs apart."""
    return resolve_out(Path(layout.verify_folder(datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")[:-3] + "Z")))


def run(config: VerifyConfig, out: Path | None = None, *, overwrite: bool = False) -> VerifySummary:
    """Run the checks that `config` asks for and write their result.

    Args:
        config: decides what is verified.
        out: directory to write; None for `default_out()`.
        overwrite: empty `out` first.

    Returns:
        All lines. A failed check is a line, not an exception: the record is written either way.

    Raises:
        InputError: the folder to verify is missing or foreign.
        OutputError: the output directory is not usable; nothing was checked.
    """
    kind, target = _target(config)
    with OutputDirectory.open(
        default_out() if out is None else out,
        schema="verify",
        version=layout.SCHEMAS["verify"],
        command=f"verify {kind}",
        config=config,
        inputs={},
        resume=False,
        overwrite=overwrite,
        # Not an input: a damaged directory must be verified, not refused for its damage.
        protected=[] if target is None else [target],
    ) as directory:
        summary = VerifySummary(kind, directory.path, tuple(_lines(config)))
        seal_record(directory, summary, target)
    return summary


def seal_record(
    directory: OutputDirectory,
    summary: VerifySummary,
    target: Path | None,
    measures: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write `verify.json` and seal the directory.

    Args:
        directory: open, nothing written yet.
        summary: what came out.
        target: what was verified, if it has a path.
        measures: numbers behind the lines, plain JSON values.
        extra: further fields of the manifest.
    """
    record: dict[str, Any] = {
        "kind": summary.kind,
        "target": None if target is None else str(target),
        "passed": summary.passed,
        "lines": [asdict(line) for line in summary.lines],
    }
    if summary.words:
        record["words"] = list(summary.words)
    if measures:
        record["measures"] = dict(measures)
    directory.write_json(layout.VERIFY, record)
    directory.seal(extra={"kind": summary.kind, "passed": summary.passed, **(extra or {})})


def _target(config: VerifyConfig) -> tuple[str, Path | None]:
    """Kind and target, which must be there and of the right kind: nothing is written otherwise."""
    if isinstance(config, GoldenConfig):
        from stateplay_rl.checks.golden import golden_names

        golden_names(config.folder)
        return "golden", config.folder
    if isinstance(config, DirectoryConfig):
        from stateplay_rl.checks.directory import require_sprl_directory

        require_sprl_directory(config.path)
        return "dir", config.path
    return "install", None


def _lines(config: VerifyConfig) -> Sequence[VerifyLine]:
    if isinstance(config, GoldenConfig):
        from stateplay_rl.checks.golden import run_golden

        return run_golden(config.folder, config.clips)
    if isinstance(config, DirectoryConfig):
        from stateplay_rl.checks.directory import run_directory

        lines = run_directory(config.path, config.search)
        if config.replay and not any(line.status == "failed" for line in lines):
            from stateplay_rl.stages.verify_replay import replay_lines

            lines += replay_lines(config.path, config.search)
        return lines
    from stateplay_rl.checks.install import run_install

    return run_install()
