"""A trainer over small groups, as the stage puts it together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch

from stateplay_rl.config.train_rm import RmOptimizerConfig, TrainRmConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.reward_model.student import Student
from stateplay_rl.stages.train_rm import run as stage
from stateplay_rl.stages.train_rm.examples import Examples
from stateplay_rl.stages.train_rm.setting import Setting
from stateplay_rl.stages.train_rm.training import Trainer
from stateplay_rl.stores import layout
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.jsonl import LineLog
from tests.reward_model.small_groups import SmallExamples

ONE = Processes(0, 1, torch.device("cpu"))


def make_setting(model: Path, out: Path, *, processes: Processes = ONE, **optimizer: Any) -> Setting:
    """Settings of a small training; more epochs than a user may ask for are allowed here."""
    dropout = optimizer.pop("dropout", 0.0)
    values = {**RmOptimizerConfig().model_dump(), "groups_per_step": 8, **optimizer}
    config = TrainRmConfig(
        model=str(model),
        lora={"dropout": dropout, "rank": 8, "alpha": 16},
        compute={"gradient_checkpointing": False, "feature_cache": out / "features"},
        checkpoint_every_steps=1000,
    )
    config = config.model_copy(update={"optimizer": RmOptimizerConfig.model_construct(**values)})
    out.mkdir(parents=True, exist_ok=True)
    return Setting(config, processes, out, "float32")


class Bench:
    """A student with its trainer."""

    def __init__(self, setting: Setting, examples: SmallExamples) -> None:
        self.setting, self.examples = setting, examples
        self.student: Student = stage.make_student(setting, Path(setting.config.model))
        self.log = LineLog(setting.out / layout.TRAINING_LOG)
        self.checkpoints = CheckpointStore(setting.out / layout.CHECKPOINTS_FOLDER)
        # Stands for the real class in everything that training uses of it.
        known = cast(Examples, examples)
        self.trainer = Trainer(setting, known, self.student, self.log, self.checkpoints)
