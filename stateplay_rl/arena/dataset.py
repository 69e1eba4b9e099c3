"""Arena conditions and clips: drawn from a seed, class-balanced as asked, in the real data's format.

A condition is (first state, held buttons, opponent's strategy); its prompt and class come from the true
engine. Condition `i` of a seed depends on `(seed, i, class)` alone, so that any number of workers draws
the same data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.arena.game import simulate_first
from stateplay_rl.arena.moves import HP_MAX, METER_MAX, SPECIAL_COST
from stateplay_rl.arena.opponent import STRATEGIES, STRATEGY_BY_NAME
from stateplay_rl.arena.prompts import write_prompt
from stateplay_rl.arena.renderer import render
from stateplay_rl.arena.state import (
    FRAMES,
    MIN_GAP,
    NO_GLITCHES,
    WINDOW_FRAMES,
    WRITTEN_FRAMES,
    X_MAX,
    X_MIN,
    FirstState,
    Glitches,
    Trajectory,
)
from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.errors import CheckError, UsageError

CLASSES = ("normal", "Macro_success", "macro_fail", "Result_win", "Result_lose")
# The real data's shares: 6,000 normal clips and 1,000 of each other class.
REAL_MIX: dict[str, float] = {
    "normal": 0.6,
    "Macro_success": 0.1,
    "macro_fail": 0.1,
    "Result_win": 0.1,
    "Result_lose": 0.1,
}
CHANGE_BY_FRAME = 14
MAX_DRAWS = 4000


@dataclass(frozen=True)
class MinimumChange:
    """How much the bars of a condition must truly move.

    Args:
        hp_pixel_frames: sum over frames and fighters of the distance of the HP bars from their first frame, pixels.
        meter_pixel_frames: the same of the meter bars.
    """

    hp_pixel_frames: float = 0.0
    meter_pixel_frames: float = 0.0


NO_MINIMUM = MinimumChange()
"""What the base model was trained on."""
CLEAR_CHANGE = MinimumChange(hp_pixel_frames=200.0, meter_pixel_frames=100.0)
"""What written data sets hold: where a bar moves by two pixels only, a pixel of noise decides the score."""
PIXEL_POINTS = 4

# One-sided conditions (only HP or only meter ever changes) are mostly redrawn: both displays must matter.
KEEP_ONE_SIDED = 0.25

_INDEX = {name: i for i, name in enumerate(BUTTONS)}


@dataclass(frozen=True)
class ArenaCondition:
    """What a candidate may depend on, plus its class.

    Args:
        seed: Seed of the draw.
        index: Position in the draw.
        first: What the first frame shows.
        held_buttons: uint8 [36, 11] in {0, 1}, constant within each window of 4 rows.
        strategy: Name of the opponent's strategy.
        mechanics_class: Mixed-case class name, one of `CLASSES`.
        prompt: The text, from the true engine's trajectory.
    """

    seed: int
    index: int
    first: FirstState
    held_buttons: NDArray[np.uint8]
    strategy: str
    mechanics_class: str
    prompt: str


def simulate(condition: ArenaCondition, glitches: Glitches = NO_GLITCHES, frames: int = FRAMES) -> Trajectory:
    """Play a condition: the 33 frames that are used, or up to the 36 of a written clip."""
    return simulate_first(condition.first, condition.held_buttons, condition.strategy, glitches, frames)


def classify(trajectory: Trajectory) -> str:
    """Mechanics class of a true trajectory: a knock-out first, then player 1's first special."""
    if trajectory.hp[-1, 1] == 0 and trajectory.hp[-1, 0] > 0:
        return "Result_win"
    if trajectory.hp[-1, 0] == 0:
        return "Result_lose"
    for event in trajectory.events:
        if event.player == 0 and event.kind in ("special", "fallback"):
            return "Macro_success" if event.kind == "special" else "macro_fail"
    return "normal"


def class_sequence(count: int, seed: int, class_mix: Mapping[str, float] | None = None) -> tuple[str, ...]:
    """Class of each of `count` conditions: exact shares by largest remainder, seeded order.

    Raises:
        UsageError: an unknown class, a negative share, or no positive share.
    """
    mix = dict(REAL_MIX if class_mix is None else class_mix)
    unknown = [name for name in mix if name not in CLASSES]
    total = sum(mix.values())
    if unknown or min(mix.values(), default=0.0) < 0 or total <= 0:
        raise UsageError(f"not a class mix: {mix}", f"shares of {', '.join(CLASSES)}, at least one above 0")
    exact = [count * mix.get(name, 0.0) / total for name in CLASSES]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(CLASSES)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: count - sum(counts)]:
        counts[i] += 1
    names = [name for name, number in zip(CLASSES, counts, strict=True) for _ in range(number)]
    order = np.random.default_rng([seed, 0xC1A55]).permutation(count)
    return tuple(names[i] for i in order)


def draw_conditions(
    count: int,
    seed: int,
    class_mix: Mapping[str, float] | None = None,
    minimum: MinimumChange = NO_MINIMUM,
) -> list[ArenaCondition]:
    """Draw `count` conditions; the default mix is the real data's."""
    classes = class_sequence(count, seed, class_mix)
    return [draw_condition(seed, index, name, minimum) for index, name in enumerate(classes)]


def draw_condition(seed: int, index: int, mechanics_class: str, minimum: MinimumChange = NO_MINIMUM) -> ArenaCondition:
    """Draw until the true trajectory is of the class and a bar changes by frame 14.

    Raises:
        CheckError: no such condition within `MAX_DRAWS` draws (a bug of the proposals).
    """
    rng = np.random.default_rng([seed, index, CLASSES.index(mechanics_class)])
    # Drawn once, so that redrawing does not make the strategies that block well rare.
    strategy = _draw_strategy(rng, mechanics_class)
    for _ in range(MAX_DRAWS):
        first = _draw_first(rng, mechanics_class)
        held = _draw_buttons(rng, first, mechanics_class)
        truth = simulate_first(first, held, strategy)
        if classify(truth) != mechanics_class or not (_moves(truth, minimum) and _accepted(rng, truth)):
            continue
        if mechanics_class != "macro_fail" or _fallback_matters(truth, first, held, strategy):
            prompt = write_prompt(STRATEGY_BY_NAME[strategy], truth)
            return ArenaCondition(seed, index, first, held, strategy, mechanics_class, prompt)
    raise CheckError(f"no condition of class {mechanics_class} in {MAX_DRAWS} draws (seed {seed}, index {index})")


def _moves(truth: Trajectory, minimum: MinimumChange) -> bool:
    hp, meter = (float(np.abs(bar.astype(np.int64) - bar[:1]).sum()) / PIXEL_POINTS for bar in (truth.hp, truth.meter))
    return hp >= minimum.hp_pixel_frames and meter >= minimum.meter_pixel_frames


def _accepted(rng: np.random.Generator, truth: Trajectory) -> bool:
    hp, meter = truth.hp, truth.meter
    early = slice(1, CHANGE_BY_FRAME + 1)
    if not ((hp[early] != hp[0]).any() or (meter[early] != meter[0]).any()):
        return False
    both = (hp != hp[0]).any() and (meter != meter[0]).any()
    return bool(both or rng.random() < KEEP_ONE_SIDED)


def _fallback_matters(truth: Trajectory, first: FirstState, held: NDArray[np.uint8], strategy: str) -> bool:
    """Whether a special that fired without meter would show in a bar: the point of the class."""
    twin = simulate_first(first, held, strategy, Glitches(special_without_meter=True))
    return not (np.array_equal(twin.hp, truth.hp) and np.array_equal(twin.meter, truth.meter))


def _draw_strategy(rng: np.random.Generator, mechanics_class: str) -> str:
    # A player who loses needs an opponent who attacks.
    names = [s.name for s in STRATEGIES if mechanics_class != "Result_lose" or s.category != "Defense"]
    return names[int(rng.integers(len(names)))]


def _steps_of_4(rng: np.random.Generator, low: int, high: int) -> int:
    return 4 * int(rng.integers(low // 4, high // 4 + 1))


def _draw_first(rng: np.random.Generator, mechanics_class: str) -> FirstState:
    close = rng.random() < 0.6
    gap = 2 * int(rng.integers(MIN_GAP // 2, 15 if close else 32))
    left = 2 * int(rng.integers(X_MIN // 2, (X_MAX - gap) // 2 + 1))
    x = (left, left + gap) if rng.random() < 0.7 else (left + gap, left)
    hp = [_steps_of_4(rng, 80, HP_MAX), _steps_of_4(rng, 80, HP_MAX)]
    meter = [_steps_of_4(rng, 0, METER_MAX), _steps_of_4(rng, 0, METER_MAX)]
    if mechanics_class == "Result_win":
        hp[1] = _steps_of_4(rng, 4, 48)
    elif mechanics_class == "Result_lose":
        hp[0] = _steps_of_4(rng, 4, 48)
    elif mechanics_class == "Macro_success":
        meter[0] = _steps_of_4(rng, SPECIAL_COST, METER_MAX)
    elif mechanics_class == "macro_fail":
        meter[0] = _steps_of_4(rng, 0, SPECIAL_COST - 4)
    crouching = (bool(rng.random() < 0.25), bool(rng.random() < 0.3))
    return FirstState(x, crouching, (hp[0], hp[1]), (meter[0], meter[1]), int(rng.integers(10, 100)))


_HABITS: dict[str, dict[str, float]] = {
    "attack": {"toward": 2, "away": 0.3, "none": 0.5, "down": 0.4, "jump": 0.8, "hit": 6},
    "mixed": {"toward": 2, "away": 1.5, "none": 1, "down": 1, "jump": 1.5, "hit": 3},
    "defend": {"toward": 0.7, "away": 4, "none": 1.5, "down": 1.5, "jump": 0.7, "hit": 1},
}


def _draw_buttons(rng: np.random.Generator, first: FirstState, mechanics_class: str) -> NDArray[np.uint8]:
    """Held buttons [36, 11]: one choice a window, often kept for the next window."""
    lose = mechanics_class == "Result_lose"
    habit = _HABITS[str(rng.choice(list(_HABITS), p=(0.3, 0.35, 0.35) if lose else (0.6, 0.3, 0.1)))]
    kinds, weights = list(habit), np.array(list(habit.values()))
    windows = WRITTEN_FRAMES // WINDOW_FRAMES
    buttons = np.zeros((windows, len(BUTTONS)), np.uint8)
    ahead = "RIGHT" if first.x[1] > first.x[0] else "LEFT"
    behind = "LEFT" if ahead == "RIGHT" else "RIGHT"
    hits = ("Y", "X", "Z", "A", "B", "C") + (("D",) if mechanics_class.startswith("Result") else ())
    macro = int(rng.integers(0, 3)) if mechanics_class.lower().startswith("macro") else -1
    pressed: tuple[str, ...] = ()
    for window in range(windows):
        if window == 0 or rng.random() > 0.35:
            pressed = _choose(rng, kinds, weights, ahead, behind, hits)
        if macro >= 0 and (window == macro or (window > macro + 2 and rng.random() < 0.12)):
            pressed = ("D",)
        buttons[window, [_INDEX[name] for name in pressed]] = 1
    return np.repeat(buttons, WINDOW_FRAMES, axis=0)


def _choose(
    rng: np.random.Generator,
    kinds: list[str],
    weights: NDArray[np.float64],
    ahead: str,
    behind: str,
    hits: tuple[str, ...],
) -> tuple[str, ...]:
    kind = str(rng.choice(kinds, p=weights / weights.sum()))
    if kind == "hit":
        return (hits[int(rng.integers(len(hits)))],)
    if kind == "jump":
        return ("UP", (ahead, behind)[int(rng.random() < 0.3)]) if rng.random() < 0.8 else ("UP",)
    if kind == "away":
        return (behind, "DOWN") if rng.random() < 0.4 else (behind,)
    return {"toward": (ahead,), "down": ("DOWN",), "none": ()}[kind]


__all__ = [
    "CLASSES",
    "REAL_MIX",
    "ArenaCondition",
    "class_sequence",
    "classify",
    "CLEAR_CHANGE",
    "NO_MINIMUM",
    "MinimumChange",
    "draw_condition",
    "draw_conditions",
    "render",
    "simulate",
]
