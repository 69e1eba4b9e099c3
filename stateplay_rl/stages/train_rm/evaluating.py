"""Score splits with the student, the reading chosen on validation, and everything measured on test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from stateplay_rl.reward_model.agreement import (
    Judged,
    baseline_scores,
    by_class,
    by_position,
    calibration,
    calibration_error,
    cluster_interval,
    summarise,
)
from stateplay_rl.reward_model.payload import GroupPayload, without_actions, without_reference
from stateplay_rl.reward_model.reading import Reading
from stateplay_rl.reward_model.student import Student
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.train_rm.examples import Example, Examples
from stateplay_rl.stages.train_rm.setting import Setting
from stateplay_rl.stores.jsonl import LineLog

Variant = Literal["full", "reference_hidden", "actions_hidden", "untrained"]
ABLATIONS: dict[Variant, Callable[[GroupPayload], GroupPayload | None]] = {
    "reference_hidden": without_reference,
    "actions_hidden": without_actions,
}
VERSION = 1


class Predictions:
    """The student's answers, one line each in ``predictions.jsonl``; a resume scores only what is missing.

    Args:
        log: the file.
    """

    def __init__(self, setting: Setting, examples: Examples, student: Student, log: LineLog) -> None:
        self._setting, self._examples, self._student, self._log = setting, examples, student, log
        self._known: dict[tuple[str, str, str], dict[str, Any]] = {}
        for line in setting.processes.broadcast(log.read() if setting.processes.is_main else None):
            self._known[(line["variant"], line["reading"], line["group_id"])] = line

    def judged(self, items: Sequence[Example], variant: Variant, reading: Reading) -> list[Judged]:
        """Both scores of every group; groups that a variant cannot be made of are left out."""
        missing = [item for item in items if (variant, reading, item.group_id) not in self._known]
        if missing:
            self._score(missing, variant, reading)
        found = []
        for item in items:
            line = self._known[(variant, reading, item.group_id)]
            if line["possible"]:
                scores = None if line["scores"] is None else tuple(line["scores"])
                found.append(
                    Judged(
                        item.group_id, item.cluster, item.mechanics_class, item.raw_scores, scores, tuple(line["order"])
                    )
                )
        return found

    def _score(self, items: Sequence[Example], variant: Variant, reading: Reading) -> None:
        processes = self._setting.processes
        own: list[dict[str, Any]] = []
        mine = self._setting.scored_here(items)
        with Progress(f"evaluate {variant} ({reading})", len(mine), "groups") as progress:
            for item in mine:
                own.append(self._line(item, variant, reading))
                progress.advance()
        gathered = processes.gather(own)
        # With a sharded base every rank scored everything: the answers are the same.
        lines = {line["group_id"]: line for line in gathered}
        ordered = [lines[item.group_id] for item in items]
        on_main(processes, lambda: [self._log.append(line) for line in ordered])
        self._known |= {(variant, reading, line["group_id"]): line for line in ordered}

    def _line(self, item: Example, variant: Variant, reading: Reading) -> dict[str, Any]:
        payload: GroupPayload | None = self._examples.payload(item)
        assert payload is not None
        order = list(payload.order)
        if variant in ABLATIONS:
            payload = ABLATIONS[variant](payload)
        base = {"variant": variant, "reading": reading, "group_id": item.group_id, "split": item.split, "order": order}
        if payload is None:
            return {**base, "possible": False, "scores": None, "reason": None, "answer": "", "legal_mass": None}
        with self._student.model.disable_adapter() if variant == "untrained" else nullcontext():
            answer = self._student.score(payload, reading)
        scores = None if answer.scores is None else list(payload.by_candidate(answer.scores))
        return {
            **base,
            "possible": True,
            "scores": scores,
            "reason": answer.reason,
            "answer": answer.text,
            "legal_mass": answer.legal_mass,
        }


@dataclass(frozen=True)
class ReadingChoice:
    """How scores will be read, and the validation figures that decided it (`greedy` and `expected`)."""

    reading: Reading
    validation: dict[str, dict[str, float | int | None]]


def choose_reading(setting: Setting, examples: Examples, predictions: Predictions) -> ReadingChoice:
    """`expected` when its pairwise agreement on validation is higher, or as high with a smaller error."""
    config = setting.config
    readings: list[Reading] = ["greedy", "expected"] if config.reading == "best" else [config.reading]
    items = examples.of_split("validation")
    found = {r: summarise(predictions.judged(items, "full", r), config.gate.tie_points) for r in readings}

    def rank(reading: Reading) -> tuple[float, float]:
        agreement, error = found[reading]["pairwise_agreement"], found[reading]["mae_points"]
        return (-1.0 if agreement is None else agreement, -1e9 if error is None else -error)

    # max keeps the first of equals: the simpler reading.
    return ReadingChoice(max(readings, key=rank), {str(name): value for name, value in found.items()})


def evaluate(
    setting: Setting,
    examples: Examples,
    predictions: Predictions,
    choice: ReadingChoice,
    orders: Mapping[str, tuple[int, ...]],
) -> dict[str, Any]:
    """Everything measured on the test split, beside baselines and ablations. Plain JSON values.

    Args:
        orders: stored candidate at each position shown, by group id.
    """
    gate, reading = setting.config.gate, choice.reading
    test = examples.of_split("test")
    full = predictions.judged(test, "full", reading)

    def measured(groups: Sequence[Judged]) -> dict[str, Any]:
        interval = cluster_interval(
            groups,
            tie_points=gate.tie_points,
            confidence=gate.confidence,
            resamples=gate.resamples,
            seed=setting.config.seed,
        )
        low_high = None if interval is None else [interval.low, interval.high]
        return {**summarise(groups, gate.tie_points), "pairwise_agreement_interval": low_high}

    compared = {name: measured(g) for name, g in baseline_scores(_by_judge(examples, orders), full).items()}
    if setting.config.ablations:
        variants: tuple[Variant, ...] = (*ABLATIONS, "untrained")
        for variant in variants:
            groups = predictions.judged(test, variant, reading)
            compared[variant] = measured(groups) if groups else {"groups": 0, "pairwise_agreement": None}
    return {
        "version": VERSION,
        "split": "test",
        "reading": reading,
        "tie_points": gate.tie_points,
        "confidence": gate.confidence,
        "clusters": len({group.cluster for group in full}),
        "student": {**measured(full), "calibration_error_points": calibration_error(full)},
        "by_class": by_class(full, gate.tie_points),
        "by_position": by_position(full, gate.tie_points),
        "calibration": calibration(full),
        "baselines": compared,
        "validation": choice.validation,
    }


def _by_judge(examples: Examples, orders: Mapping[str, tuple[int, ...]]) -> list[Judged]:
    """The training groups with the order in which they were shown: what picture-blind baselines are fitted on."""
    return [
        Judged(e.group_id, e.cluster, e.mechanics_class, e.raw_scores, None, orders[e.group_id])
        for e in examples.of_split("train")
    ]
