"""The training loop: global steps of whole groups, an epoch's validation loss, checkpoints that resume exactly.

A step depends on settings, data and the adapter at its start, and on nothing else: not on the number of ranks, not on
what was interrupted. Dropout is drawn per (epoch, group) from a key of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stateplay_rl.config.train_rm import TrainRmConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import CorruptionError
from stateplay_rl.nft.randomness import DrawKey, permutation
from stateplay_rl.reward_model import lora
from stateplay_rl.reward_model.learning import (
    group_loss,
    offloaded,
    prepare_for_scoring,
    prepare_for_training,
)
from stateplay_rl.reward_model.optimising import (
    GradientSum,
    learning_rate,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
)
from stateplay_rl.reward_model.student import Student
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.train_rm.examples import Example, Examples
from stateplay_rl.stages.train_rm.setting import Setting
from stateplay_rl.stores.checkpoints import CheckpointPayload, CheckpointStore
from stateplay_rl.stores.jsonl import LineLog

_NO_CHECKPOINT = -1


@dataclass(frozen=True)
class Schedule:
    """Steps of a training.

    Args:
        groups: of the train split, by id.
        groups_per_step: global.
        epochs: passes over the groups.
    """

    groups: tuple[Example, ...]
    groups_per_step: int
    epochs: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch; the last may hold fewer groups."""
        return -(-len(self.groups) // self.groups_per_step)

    @property
    def steps(self) -> int:
        """All optimizer steps."""
        return self.epochs * self.steps_per_epoch

    def at(self, step: int) -> tuple[int, list[Example]]:
        """Epoch and groups of a step: a keyed shuffle of the epoch, cut into steps."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = permutation(DrawKey(self.seed, "student order", batch=epoch), len(self.groups))
        chosen = order[place * self.groups_per_step : (place + 1) * self.groups_per_step]
        return epoch, [self.groups[i] for i in chosen]


@dataclass
class Best:
    """The epoch with the lowest validation loss so far, and its adapter."""

    epoch: int | None = None
    loss: float | None = None
    adapter: dict[str, Tensor] | None = None


class Trainer:
    """Trains the adapter of a student.

    Args:
        student: base with a fresh adapter.
        log: one line a step, one an epoch; without times, so that it is reproducible.
        checkpoints: where the state of a resume lies.
    """

    def __init__(
        self,
        setting: Setting,
        examples: Examples,
        student: Student,
        log: LineLog,
        checkpoints: CheckpointStore,
    ) -> None:
        self._setting, self._examples, self._student = setting, examples, student
        self._config: TrainRmConfig = setting.config
        self._processes: Processes = setting.processes
        self._log, self._checkpoints = log, checkpoints
        self._parameters = lora.trained_parameters(student.model)
        self._optimizer = make_optimizer(self._config.optimizer, self._parameters)
        self._best = Best()
        optimizer = self._config.optimizer
        self.schedule = Schedule(
            examples.of_split("train"), optimizer.groups_per_step, optimizer.epochs, self._config.seed
        )

    def run(self) -> Best:
        """Train to the end, from the latest checkpoint on; the best epoch's adapter is in the model afterwards."""
        done = self._resume()
        schedule = self.schedule
        with Progress("train-rm", schedule.steps, "steps") as progress:
            progress.advance(done)
            for step in range(done, schedule.steps):
                loss = self._step(step)
                last_of_epoch = (step + 1) % schedule.steps_per_epoch == 0
                if last_of_epoch:
                    self._end_epoch(step // schedule.steps_per_epoch)
                if last_of_epoch or (step + 1) % self._config.checkpoint_every_steps == 0:
                    self._save(step + 1)
                progress.advance(note=f"loss {loss:.3f}")
        assert self._best.adapter is not None, "every training has at least one epoch"
        lora.load_state(self._student.model, self._best.adapter)
        return self._best

    def _step(self, step: int) -> float:
        config = self._config
        epoch, groups = self.schedule.at(step)
        prepare_for_training(self._student.model, checkpointing=config.compute.gradient_checkpointing)
        gradient = GradientSum(list(self._parameters.values()))
        for example, share in self._setting.shares(groups):
            with self._setting.computing(), _drawn_from(self._dropout_key(epoch, example)):
                group = self._input(example, epoch)
                with offloaded(self._student.base.device, config.compute.offload_checkpoints):
                    loss_of_group = group_loss(self._student.model, group)
                gradient.add(loss_of_group, share)
        loss, norm = gradient.finish(self._processes.sum_, config.optimizer.max_gradient_norm)
        rate = learning_rate(config.optimizer, step, self.schedule.steps)
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._write(
            {
                "step": step + 1,
                "epoch": epoch + 1,
                "groups": len(groups),
                "loss": loss,
                "grad_norm": norm,
                "learning_rate": rate,
            }
        )
        return loss

    def _dropout_key(self, epoch: int, example: Example) -> DrawKey:
        return DrawKey(self._config.seed, "student dropout", batch=epoch, condition=example.group_id)

    def _input(self, example: Example, epoch: int) -> Any:
        """The group as its judge saw it, or in this epoch's own order."""
        order: Sequence[int] | None = None
        if self._config.optimizer.shuffle_labels:
            key = DrawKey(self._config.seed, "student labels", batch=epoch, condition=example.group_id)
            order = permutation(key, len(example.raw_scores))
        return self._student.reader.training_input(self._examples.payload(example, order), example.targets)

    def _end_epoch(self, epoch: int) -> None:
        """Validation loss; the adapter is kept when it is the lowest so far."""
        loss = self._validation_loss()
        if self._best.loss is None or loss < self._best.loss:
            self._best = Best(epoch + 1, loss, lora.adapter_state(self._student.model))
        self._write({"epoch": epoch + 1, "validation_loss": loss, "best_epoch": self._best.epoch})

    @torch.no_grad()
    def _validation_loss(self) -> float:
        prepare_for_scoring(self._student.model)
        groups = self._examples.of_split("validation")
        total = torch.zeros(1, dtype=torch.float64, device=self._student.base.device)
        for example, share in self._setting.shares(groups):
            with self._setting.computing():
                payload = self._examples.payload(example)
                inputs = self._student.reader.training_input(payload, example.targets)
                total += share * group_loss(self._student.model, inputs).double()
        return float(self._processes.sum_(total))

    def _write(self, line: dict[str, Any]) -> None:
        on_main(self._processes, lambda: self._log.append(line))

    def _save(self, step: int) -> None:
        best = self._best
        payload = CheckpointPayload(
            live=lora.adapter_state(self._student.model),
            # The best epoch's adapter so far; empty before the first epoch has ended.
            old=best.adapter or {},
            optimizer=optimizer_state(self._optimizer, list(self._parameters)),
            state={"step": step, "log_bytes": self._log.size, "best_epoch": best.epoch, "best_loss": best.loss},
        )
        on_main(self._processes, lambda: self._checkpoints.save(step, payload))
        self._processes.barrier()

    def _latest(self) -> int:
        latest = self._checkpoints.latest()
        return _NO_CHECKPOINT if latest is None else latest

    def _resume(self) -> int:
        """Load the latest checkpoint; returns the steps done."""
        latest: int = self._processes.broadcast(self._latest() if self._processes.is_main else None)
        if latest == _NO_CHECKPOINT:
            on_main(self._processes, lambda: self._log.truncate_to(0))
            return 0
        payload = self._checkpoints.load(latest).payload
        try:
            step, log_bytes = int(payload.state["step"]), int(payload.state["log_bytes"])
            self._best = Best(payload.state["best_epoch"], payload.state["best_loss"], dict(payload.old) or None)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(
                f"the checkpoint of step {latest} lacks {error}", "start over, --overwrite"
            ) from error
        lora.load_state(self._student.model, payload.live)
        load_optimizer_state(self._optimizer, list(self._parameters), payload.optimizer)
        on_main(self._processes, lambda: self._log.truncate_to(log_bytes))
        return step


@contextmanager
def _drawn_from(key: DrawKey) -> Iterator[None]:
    """Library draws (dropout) come from a key, whatever was drawn before; the global state is put back."""
    with torch.random.fork_rng():
        torch.manual_seed(key.seed())
        yield
