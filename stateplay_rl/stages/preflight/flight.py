"""What the lines of a preflight share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stateplay_rl.checks.lines import NotChecked
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.verify import PreflightConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.stores.conditions import ConditionRecord, ConditionStore
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.worlds.base import WorldSpec


@dataclass
class Flight:
    """Settings, and what earlier lines made. A part that could not be made is None, and what needs it is skipped.

    Attributes:
        run: where the run will lie.
        work: for files of the checks; removed afterwards.
        measures: numbers for `verify.json`.
    """

    config: PreflightConfig
    train: TrainNftConfig
    world_config: WorldConfig
    spec: WorldSpec
    run: Path
    work: Path
    store: ConditionStore | None = None
    sample: list[ConditionRecord] = field(default_factory=list)
    groups: list[StoredGroup] = field(default_factory=list)
    measures: dict[str, Any] = field(default_factory=dict)

    def conditions(self) -> ConditionStore:
        """The opened conditions.

        Raises:
            NotChecked: they could not be opened.
        """
        if self.store is None:
            raise NotChecked("needs the conditions", "give --conditions DIR of sprl build-conditions")
        return self.store
