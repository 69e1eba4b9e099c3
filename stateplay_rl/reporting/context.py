"""What every page builder is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.config.report import ReportConfig
from stateplay_rl.reporting.label_files import LabelledSet
from stateplay_rl.reporting.media import MediaTable
from stateplay_rl.reporting.sources import Source


@dataclass(frozen=True)
class ReportContext:
    """Settings, the report's directory, the media table and all sources of one report.

    Attributes:
        embedded_groups: groups with embedded videos that each source may have.
        labelled: blind sets that people have scored.
    """

    config: ReportConfig
    out: Path
    media: MediaTable
    sources: tuple[Source, ...]
    embedded_groups: int
    labelled: tuple[LabelledSet, ...] = ()

    def others(self, schema: str) -> tuple[Path, ...]:
        """Places of the given directories of one kind."""
        return tuple(source.path for source in self.sources if source.schema == schema)

    @property
    def places(self) -> tuple[Path, ...]:
        """Where inputs of one source may lie: the other sources."""
        return tuple(source.path for source in self.sources)
