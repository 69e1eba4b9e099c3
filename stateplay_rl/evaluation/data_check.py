"""A data check: does the first frame of a condition show what its state columns say?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.evaluation.hud import HudReader
from stateplay_rl.evaluation.intervals import bounds_of

MAX_EXAMPLES = 20


@dataclass(frozen=True)
class ElementCheck:
    """One element of one first frame: the true value, the range read (None if unreadable), and whether they agree."""

    element: str
    true: float
    low: float | None
    high: float | None
    agrees: bool | None

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        return asdict(self)


def check_first_frame(
    reader: HudReader, first_frame_hwC: NDArray[np.uint8], states: Mapping[str, NDArray[np.generic]]
) -> tuple[ElementCheck, ...]:
    """Compare a first frame with the first row of the state columns; elements without a column are left out.

    Args:
        reader: reads this game's HUD.
        first_frame_hwC: uint8 RGB as the model gets it.
        states: state columns by name.

    Raises:
        InputError: not a colour picture.
    """
    names = [name for name in reader.facts.elements if name in states and len(states[name])]
    if not names:
        return ()
    reading = reader.read(first_frame_hwC)
    found = []
    for name in names:
        seen, true = reading.elements[name], float(states[name][0])
        agrees = seen.holds(true, reader.facts.tolerances[name]) if seen.readable else None
        found.append(ElementCheck(name, true, seen.low, seen.high, agrees))
    return tuple(found)


def summarise_checks(checks: Mapping[str, Sequence[ElementCheck]], reader: str) -> dict[str, object]:
    """Counts over conditions, by element, with bounds and the first examples of disagreement.

    Args:
        checks: by condition id.
        reader: name of the reader's game.
    """
    ordered = {condition: checks[condition] for condition in sorted(checks) if checks[condition]}
    by_element: dict[str, list[bool | None]] = {}
    examples: list[dict[str, object]] = []
    for condition, row in ordered.items():
        for check in row:
            by_element.setdefault(check.element, []).append(check.agrees)
            if check.agrees is False and len(examples) < MAX_EXAMPLES:
                examples.append({"condition_id": condition, **check.to_json()})
    return {
        "reader": reader,
        "conditions": len(ordered),
        "disagreeing": sum(any(check.agrees is False for check in row) for row in ordered.values()),
        "unreadable": sum(all(check.agrees is None for check in row) for row in ordered.values()),
        "by_element": {name: bounds_of(outcomes).to_json() for name, outcomes in by_element.items()},
        "examples": examples,
    }
