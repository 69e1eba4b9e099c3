"""The rows of the table: what is timed, its floor, and the figure that it should reach on one H200."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stateplay_rl.config.world import Checkpointing
from stateplay_rl.stages.profile.floors import Floors
from stateplay_rl.stages.profile.workload import MICRO_STEPS, Workload

REAL_PRESET, REAL_FRAMES = "stateplay-5b", 97
"""What the targets hold for."""


STUDENT_ROWS = ("student scores a group", "student LoRA step")
STUDENT_TARGETS = dict(zip(STUDENT_ROWS, ((2.6, None), (14.0, 44.0)), strict=True))
"""Seconds and peak memory that the student's rows should reach on one H200."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        work: what is timed.
        floor: seconds below which it cannot fall on this machine; None where no product bounds it.
        target: seconds to reach on one H200 at the real size; None: not in the table.
        checkpointing: of the blocks, while it is timed.
        target_gib: peak memory to stay below.
        traced: its kernels are summarised, too.
        parts: equal pieces in one call; seconds are of one.
        long: a call takes seconds, so that one is enough behind its figure.
    """

    name: str
    work: Callable[[Workload], object]
    floor: float | None
    target: float | None
    checkpointing: Checkpointing = "off"
    target_gib: float | None = None
    traced: bool = False
    parts: int = 1
    long: bool = False


def table(floors: Floors, decode_floor: float, encode_floor: float, steps: tuple[int, int]) -> tuple[Row, ...]:
    """All rows in the order in which they are timed.

    Args:
        floors: of the transformer.
        decode_floor, encode_floor: of the library's graph; fewer products are possible.
        steps: of the usual sampler and of a high-order one (whose steps cost the same).
    """
    micro = floors.forward + floors.both
    many, few = steps

    def candidate(steps: int) -> float:
        return steps * floors.forward + decode_floor

    def trains(
        name: str, floor: float, target: float | None, checkpointing: Checkpointing, anchors: bool = False
    ) -> Row:
        return Row(
            name,
            lambda w: w.micro_steps(anchors=anchors),
            floor,
            target,
            checkpointing,
            traced=checkpointing == "off" and not anchors,
            parts=MICRO_STEPS,
            long=True,
        )

    return (
        Row("forward", lambda w: w.forward(), floors.forward, 0.220, traced=True),
        Row("decode", lambda w: w.decode(), decode_floor, 1.3, traced=True),
        Row("encode", lambda w: w.encode(), encode_floor, 0.5, traced=True),
        Row("forward+backward", lambda w: w.both(), floors.both, 0.530, "off", 40.0, traced=True),
        trains("micro-step", micro, 0.770, "off"),
        trains("micro-step, anchors", micro + floors.both, 1.330, "off", anchors=True),
        Row(f"candidate, {many} steps", lambda w: w.candidate(many), candidate(many), 8.1, long=True),
        Row(f"candidate, {few} steps", lambda w: w.candidate(few), candidate(few), 4.2, long=True),
        Row("forward+backward, checkpointed", lambda w: w.both(), floors.checkpointed, 0.720, "full"),
        trains("micro-step, checkpointed", micro + floors.forward, 0.960, "full"),
        trains("selective micro-step", micro + floors.forward / 2, None, "selective"),
        Row("states and text", lambda w: w.condition_parts(), None, None),
    )
