"""The end of a training: adapter, facts, evaluation, gate and calibration plot, each in its file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from stateplay_rl.reporting.blocks import LineChart, Series
from stateplay_rl.reporting.png import render_png
from stateplay_rl.reward_model import lora
from stateplay_rl.reward_model.base_model import ARENA_STUDENT, BaseModel
from stateplay_rl.reward_model.delta_rule import RuleName
from stateplay_rl.reward_model.gate import gate_record
from stateplay_rl.reward_model.reading import Reading
from stateplay_rl.reward_model.student import Student, StudentFacts, adapter_sha256
from stateplay_rl.stages.train_rm.examples import Examples
from stateplay_rl.stages.train_rm.setting import Setting
from stateplay_rl.stores import atomic, layout
from stateplay_rl.stores.manifest import OutputDirectory


def facts_of(setting: Setting, examples: Examples, base: BaseModel, reading: Reading) -> StudentFacts:
    """What the judge `student` of this directory needs to know; paths relative to it."""
    compute = setting.config.compute
    rule: RuleName = compute.delta_rule
    protocol = examples.protocol.config
    pictures = [os.path.relpath(path.absolute(), setting.out) for path in protocol.example_images]
    return StudentFacts(
        base="arena" if base.folder == ARENA_STUDENT else os.path.relpath(base.folder.absolute(), setting.out),
        base_sha256=base.sha256,
        protocol={**protocol.model_dump(mode="json"), "example_images": pictures},
        protocol_sha256=examples.protocol.sha256,
        reading=reading,
        precision=setting.precision,
        delta_rule=rule,
        fused=compute.fused,
        attention=compute.attention,
        max_length=setting.config.max_length,
        candidates=tuple(sorted({len(item.raw_scores) for item in examples.of_split("train")})),
    )


def write_adapter(output: OutputDirectory, student: Student) -> str:
    """Write `adapter/` as PEFT does; returns its identity. An interrupted run's adapter is replaced."""
    folder = output.path / layout.ADAPTER_FOLDER
    base = student.base.folder.name if student.base.folder != ARENA_STUDENT else "arena-student"
    with atomic.atomic_dir(folder, replace=True) as temp:
        lora.save_adapter(student.model, temp, base)
    return adapter_sha256(folder)


def write_results(
    output: OutputDirectory, setting: Setting, facts: StudentFacts, adapter: str, evaluation: dict[str, Any], data: Any
) -> dict[str, Any]:
    """Facts, evaluation, gate and plot; returns the gate."""
    gate = gate_record(
        evaluation,
        setting.config.gate,
        adapter_sha256=adapter,
        judge_protocol_sha256=facts.judge_protocol_sha256(adapter),
        data=data,
    )
    output.write_json(layout.STUDENT, facts.to_json())
    output.write_json(layout.EVALUATION, evaluation)
    output.write_bytes(layout.CALIBRATION, render_png(calibration_chart(evaluation)))
    # The gate last: what it names is there.
    output.write_json(layout.GATE, gate)
    return gate


def calibration_chart(evaluation: dict[str, Any]) -> LineChart:
    """Mean judge score over the student's score, beside the diagonal."""
    rows = evaluation["calibration"]
    return LineChart(
        key="calibration",
        source=layout.EVALUATION,
        y_range=(0.0, 100.0),
        title="Calibration on the test split",
        x_label="student's score, points (bin mean)",
        y_label="judge's mean score, points",
        series=(
            Series("perfect", (0.0, 100.0), (0.0, 100.0), colour=5, dashed=True),
            Series(
                "student",
                tuple(float(row["student_mean"]) for row in rows),
                tuple(float(row["judge_mean"]) for row in rows),
                colour=0,
            ),
        ),
    )


def remove_work(out: Path) -> None:
    """Checkpoints have served once the directory is about to be sealed."""
    shutil.rmtree(out / layout.CHECKPOINTS_FOLDER, ignore_errors=True)
