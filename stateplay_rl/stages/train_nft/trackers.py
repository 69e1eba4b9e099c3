"""Metrics to an experiment tracker, through accelerate; the run's own logs do not depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, filter_trackers

from stateplay_rl.distributed import Processes
from stateplay_rl.errors import MissingExtraError

TRACKER_FOLDER = "tracker"


class Tracker(Protocol):
    """Takes the numbers of a batch."""

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers by name; nested ones as `a/b`."""

    def finish(self) -> None:
        """Flush and close."""


class NoTracker:
    """Tracks nothing."""

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""


class AccelerateTracker:
    """One of accelerate's trackers."""

    def __init__(self, name: str, run: Path, run_name: str) -> None:
        kinds = filter_trackers([name], logging_dir=run)
        if not kinds:
            raise MissingExtraError(
                f"the tracker {name!r} is not installed", f"pip install {name}, or --set tracker=none"
            )
        kind: Any = LOGGER_TYPE_TO_CLASS[str(kinds[0])]
        self._tracker = kind(run_name, logging_dir=run) if kind.requires_logging_directory else kind(run_name)
        self._tracker.start()

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers by name; nested ones as `a/b`, lists and texts left out."""
        self._tracker.log(dict(_flat(values)), step=step)

    def finish(self) -> None:
        """Flush and close."""
        self._tracker.finish()


def _flat(values: Mapping[str, Any], prefix: str = "") -> Mapping[str, float]:
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}/"))
        elif isinstance(value, int | float):
            flat[prefix + name] = float(value)
    return flat


def make_tracker(name: str, run: Path, processes: Processes, run_name: str) -> Tracker:
    """The tracker of rank 0; other ranks track nothing.

    Args:
        name: of the tracker.
        run: the run's folder.
        run_name: what the tracker shows.

    Raises:
        MissingExtraError: its package is not installed.
    """
    if name == "none" or not processes.is_main:
        return NoTracker()
    return AccelerateTracker(name, run / TRACKER_FOLDER, run_name)
