"""`sprl train-rm`: from scored groups to a sealed reward_model directory with its gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stateplay_rl import runtime
from stateplay_rl.config.train_rm import TrainRmConfig
from stateplay_rl.distributed import Processes, start_processes
from stateplay_rl.reward_model import lora
from stateplay_rl.reward_model.base_model import load_base, resolve_model
from stateplay_rl.reward_model.delta_rule import check_rule
from stateplay_rl.reward_model.fused import check_fused
from stateplay_rl.reward_model.inputs import GroupReader
from stateplay_rl.reward_model.learning import Precision, grow_in_pieces, save_memory
from stateplay_rl.reward_model.sharding import shard_base
from stateplay_rl.reward_model.student import Student, may_capture
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.train_rm import sealing
from stateplay_rl.stages.train_rm.dataset import Dataset, begun_with, make_dataset
from stateplay_rl.stages.train_rm.evaluating import Predictions, choose_reading, evaluate
from stateplay_rl.stages.train_rm.examples import ExampleInputs, Examples, read_examples
from stateplay_rl.stages.train_rm.setting import Setting
from stateplay_rl.stages.train_rm.training import Best, Trainer
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.sealed import sealed_object


@dataclass(frozen=True)
class TrainRmInputs:
    """What train-rm reads, and how it treats an existing output.

    Args:
        groups: `groups/`, or a `run/` with its own scores.
        scores: `scores/` of these groups; None takes the run's own.
        conditions: None takes those that the groups record.
    """

    groups: Path
    scores: Path | None = None
    conditions: Path | None = None
    resume: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class TrainRmSummary:
    """What came out.

    Args:
        evaluation: as in ``evaluation.json``.
        gate: as in ``gate.json``.
        already_done: the output was finished before; nothing was trained.
    """

    out: Path
    evaluation: Mapping[str, Any]
    gate: Mapping[str, Any]
    already_done: bool = False


def run(config: TrainRmConfig, inputs: TrainRmInputs, out: Path) -> TrainRmSummary:
    """Train, evaluate and seal.

    Raises:
        UsageError, MissingExtraError: settings that do not fit each other, this machine or what is installed.
        InputError, CorruptionError: groups, scores or the base are missing, unfinished, damaged or do not fit.
        CheckError: LoRA targets or the delta rule are not what they must be, or the loss is not finite.
        OutputError: the output is finished, foreign, locked, or overlaps with an input.
    """
    if config.compute.threads is not None:
        runtime.pin_threads(config.compute.threads)
    processes = _processes(config)
    model_folder = resolve_model(config.model)
    examples = read_examples(config, ExampleInputs(inputs.groups, inputs.scores, inputs.conditions))
    output = on_main(processes, lambda: _open(config, inputs, examples, out, model_folder))
    try:
        if processes.broadcast(output.already_sealed if output else None):
            return _already_done(out)
        path = processes.broadcast(output.path if output else None)
        setting = Setting(config, processes, path, _precision(config, processes.device))
        examples = begun_with(setting, examples)
        student = make_student(setting, model_folder)
        dataset = make_dataset(setting, examples, student.reader)
        _check_kernels(setting, student)
        best = _train(setting, examples, student)
        return _finish(setting, examples, student, dataset, best, output)
    finally:
        if output is not None:
            output.close()


def _processes(config: TrainRmConfig) -> Processes:
    processes = start_processes()
    if config.compute.device is None or processes.count > 1:
        return processes
    return Processes(processes.rank, processes.count, runtime.pick_device(config.compute.device))


def _precision(config: TrainRmConfig, device: torch.device) -> Precision:
    if config.compute.precision != "auto":
        return config.compute.precision
    return "float32" if device.type == "cpu" else "bfloat16"


def _open(config: TrainRmConfig, inputs: TrainRmInputs, examples: Examples, out: Path, model: Path) -> OutputDirectory:
    reads = {"groups": inputs.groups, "conditions": examples.conditions}
    if inputs.scores is not None:
        reads["scores"] = inputs.scores
    protected = [model]
    protected += [path for path in (examples.requests, config.compute.feature_cache) if path is not None]
    return OutputDirectory.open(
        out,
        schema="reward_model",
        version=layout.SCHEMAS["reward_model"],
        command="train-rm",
        config=config,
        inputs=reads,
        resume=inputs.resume,
        overwrite=inputs.overwrite,
        protected=protected,
    )


def make_student(setting: Setting, folder: Path) -> Student:
    """The base with a fresh adapter."""
    config = setting.config
    grow_in_pieces(setting.processes.device)
    base = load_base(
        folder,
        device=setting.processes.device,
        precision=setting.precision,
        rule=config.compute.delta_rule,
        fused=config.compute.fused,
    )
    targets = lora.find_targets(base.model, base.layer_types)
    model = lora.attach(
        base.model,
        targets,
        rank=config.lora.rank,
        alpha=config.lora.alpha,
        dropout=config.lora.dropout,
        seed=config.seed,
    )
    save_memory(model, fused=base.fused)
    if config.compute.sharding == "fsdp2":
        shard_base(model, setting.processes.count)
    # A sharded base gathers its weights anew for every pass.
    captured = config.compute.sharding != "fsdp2" and may_capture(base, setting.precision)
    reader = GroupReader(base, config.compute.feature_cache, captured=captured)
    return Student(base, model, reader, setting.precision, config.compute.attention, captured=captured)


def _check_kernels(setting: Setting, student: Student) -> None:
    """What will train, against its definition: a wrong backward would go unnoticed for days."""
    dtype = torch.float32 if setting.precision == "float32" else torch.bfloat16
    device = setting.processes.device
    check_rule(student.base.rule, device, dtype, width=student.base.model.config.text_config.linear_key_head_dim)
    if student.base.fused:
        check_fused(device, dtype)


def _train(setting: Setting, examples: Examples, student: Student) -> Best:
    checkpoints = CheckpointStore(setting.out / layout.CHECKPOINTS_FOLDER, setting.config.keep_checkpoints)
    log = LineLog(setting.out / layout.TRAINING_LOG)
    return Trainer(setting, examples, student, log, checkpoints).run()


def _finish(
    setting: Setting,
    examples: Examples,
    student: Student,
    dataset: Dataset,
    best: Best,
    output: OutputDirectory | None,
) -> TrainRmSummary:
    predictions = Predictions(setting, examples, student, LineLog(setting.out / layout.PREDICTIONS))
    choice = choose_reading(setting, examples, predictions)
    evaluation = evaluate(setting, examples, predictions, choice, dataset.orders)
    evaluation["best_epoch"] = best.epoch
    evaluation["judge_id"] = examples.judge_id
    facts = sealing.facts_of(setting, examples, student.base, choice.reading)

    def write() -> dict[str, Any]:
        assert output is not None, "only the main process writes"
        adapter = sealing.write_adapter(output, student)
        output.write_text(layout.SERVED_TEMPLATE, student.base.chat.served_template())
        data = dataset.facts(examples.sha256())
        gate = sealing.write_results(output, setting, facts, adapter, evaluation, data)
        sealing.remove_work(output.path)
        output.seal(
            extra={
                "judge_id": examples.judge_id,
                "adapter_sha256": adapter,
                "judge_protocol_sha256": gate["judge_protocol_sha256"],
                "base_sha256": student.base.sha256,
                "lora_targets": lora.expected_counts(student.base.layer_types),
                "data": data,
                "unjudged": examples.unjudged,
                "gate_passed": gate["passed"],
                "best_epoch": best.epoch,
                "reading": choice.reading,
            },
            seeds={"run": setting.config.seed},
        )
        return gate

    gate = setting.processes.broadcast(on_main(setting.processes, write))
    return TrainRmSummary(setting.out, evaluation, gate)


def _already_done(out: Path) -> TrainRmSummary:
    return TrainRmSummary(
        out,
        sealed_object(out, "reward_model", layout.EVALUATION),
        sealed_object(out, "reward_model", layout.GATE),
        already_done=True,
    )
