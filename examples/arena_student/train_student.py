"""Train arena's small student: a Qwen3.5-class model of 5 M parameters that sees arena's pictures.

    python examples/arena_student/train_student.py --out build/arena_student               # one GPU, about 5 minutes
    python examples/arena_student/train_student.py --out build/more --init build/arena_student/student --seed 7
    python examples/arena_student/train_student.py --out build/x --scale 0.002 --device cpu # a smoke run

It answers the judge's request about engine renderings with right and wrong mechanics, never about outputs of a world
model. `sprl train-rm` then fits a LoRA to the judge's scores of real groups. Writes the model folder `student/`
(bfloat16), `train.jsonl` and `metrics.json`. The steps are fixed by `--scale` and the seed. A run that would take
longer than `--max-seconds` makes fewer: the speed is measured on the first steps, and the learning rate is planned to
end at zero in time; the log says so. `--init` goes on from a student's weights, best with another seed, hence other
conditions; sentences that its tokenizer does not know yet become new tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from student_recipe.data import Futures, render_futures, tokenizer_conditions
from student_recipe.model import SIZES, GroupSampler, PromptRows, PromptTable, StudentInTraining
from student_recipe.prompts import add_phrases, make_tokenizer
from torch import Tensor

from stateplay_rl.reward_model.answers import AnswerForm
from stateplay_rl.reward_model.base_model import load_base
from stateplay_rl.reward_model.delta_rule import DeltaRule
from stateplay_rl.reward_model.small_model import build_config, build_model, write_folder

CONDITIONS = 8_000
HELD_OUT = 256
STEPS = 4_000
BATCH = 64
LEARNING_RATE = 1e-3
WARM_UP = 150
EMA_DECAY = 0.99
"""Short: the learning rate ends at zero, and a long mean would hold weights of a worse time."""
HEAD_WEIGHT = 4.0
CHECK_STEPS = 50
"""How often speed and time left are looked at."""
RESERVED_SECONDS = 8.0
"""Kept for the evaluation and the export."""
LABELS = ("A", "B", "C", "D")


@dataclass
class Run:
    """Arguments, log and what has been made so far."""

    out: Path
    device: torch.device
    seed: int
    scale: float
    max_seconds: float
    use_graph: bool
    workers: int | None
    started: float

    def log(self, **values: Any) -> None:
        line = json.dumps({"seconds": round(time.monotonic() - self.started, 1), **values})
        print(line, flush=True)
        with (self.out / "train.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def scaled(self, full: int, least: int) -> int:
        return max(least, round(full * self.scale))

    def seconds_left(self) -> float:
        """Until the last step must be done."""
        return self.max_seconds - RESERVED_SECONDS - (time.monotonic() - self.started)


def load_student(run: Run, init: Path | None) -> tuple[Any, Any]:
    """Student (float32, CPU) and tokenizer: new, or those of a folder."""
    conditions = tokenizer_conditions(run.seed)
    if init is None:
        tokenizer = make_tokenizer(conditions)
        return build_model(build_config(SIZES, tokenizer), run.seed), tokenizer
    base = load_base(init, device=torch.device("cpu"), precision="float32", rule="auto")
    if (base.model.config.text_config.hidden_size, len(base.layer_types)) != (SIZES.hidden, SIZES.layers):
        raise SystemExit(f"{init} is a model of another size: train from nothing (leave --init out)")
    student, tokenizer = base.model.requires_grad_(True), base.chat.tokenizer
    added = add_phrases(tokenizer, conditions)
    if added:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            student.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    run.log(event="init", folder=str(init), new_tokens=added)
    return student, tokenizer


def load_data(run: Run, rows: tuple[PromptRows, PromptRows]) -> tuple[tuple[Futures, PromptTable], ...]:
    """Training and held-out conditions, rendered by forked workers while this process tokenises their requests."""
    counts = (run.scaled(CONDITIONS, 20), run.scaled(HELD_OUT, 20))
    found = []
    for count, seed, prompts in zip(counts, (run.seed, run.seed + 1), rows, strict=True):
        futures = render_futures(count, seed, run.workers, prompts.add)
        run.log(event="rendered", conditions=count, scores_mean=float(futures.arrays.scores_NV.mean()))
        found.append((futures, prompts.table()))
    return tuple(found)


class Step:
    """One optimizer step on fixed buffers, so that it can be captured as a CUDA graph."""

    def __init__(self, run: Run, model: StudentInTraining, example: dict[str, Tensor]) -> None:
        self.run, self.model = run, model
        self.buffers = {name: value.clone() for name, value in example.items()}
        self.parameters = list(model.parameters())
        self.ema = [p.detach().clone() for p in self.parameters]
        self.rate = torch.tensor(0.0, device=run.device)
        on_gpu = run.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.rate, betas=(0.9, 0.95), weight_decay=0.01, capturable=on_gpu, fused=on_gpu
        )
        self.losses = torch.zeros(2, device=run.device)

    def __call__(self) -> None:
        with torch.autocast(self.run.device.type, dtype=torch.bfloat16, enabled=self.run.device.type == "cuda"):
            answer, heads = self.model(self.buffers)
        self.optimizer.zero_grad(set_to_none=False)
        (answer + HEAD_WEIGHT * heads).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.ema, self.parameters, 1.0 - EMA_DECAY)
            self.losses.copy_(torch.stack((answer.detach(), heads.detach())))

    def fill(self, group: dict[str, Tensor]) -> None:
        for name, buffer in self.buffers.items():
            buffer.copy_(group[name], non_blocking=True)


def captured(run: Run, step: Step) -> Callable[[], None]:
    """The step as a CUDA graph: at this size a GPU waits for launches. Falls back to plain steps, and says so."""
    if run.device.type != "cuda" or not run.use_graph:
        return step
    try:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(4):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step()
    except RuntimeError as error:
        torch.cuda.synchronize()
        run.log(event="no graph", error=str(error)[:300])
        return step
    run.log(event="captured")
    return graph.replay


class StepPlan:
    """How many steps there are time for, and the learning rate on the way there."""

    def __init__(self, run: Run, steps: int) -> None:
        self._run, self._asked, self.steps = run, steps, steps
        self._begun = time.monotonic()
        self._logged = False

    def rate(self, number: int) -> float:
        """Cosine from the peak to zero at the last planned step, after a short rise."""
        rise = min(1.0, (number + 1) / WARM_UP)
        return LEARNING_RATE * rise * 0.5 * (1 + math.cos(math.pi * min(1.0, number / self.steps)))

    def look(self, number: int) -> None:
        """Now and then: how many steps fit at the speed so far."""
        if number % CHECK_STEPS:
            return
        if self._run.device.type == "cuda":
            torch.cuda.synchronize()
        speed = number / (time.monotonic() - self._begun)
        self.steps = max(number, min(self._asked, number + int(speed * self._run.seconds_left())))
        if not self._logged:
            self._run.log(event="speed", steps_per_second=round(speed, 2), asked=self._asked, planned=self.steps)
            self._logged = True


def train(run: Run, model: StudentInTraining, sampler: GroupSampler, held_out: GroupSampler) -> None:
    """All steps; leaves the averaged weights in the model."""
    batch = BATCH if run.device.type == "cuda" else 2
    step = Step(run, model, sampler.draw(batch))
    work = captured(run, step)
    plan = StepPlan(run, run.scaled(STEPS, 4))
    log_every = max(1, min(250, plan.steps // 4))
    running = torch.zeros_like(step.losses)
    number = 0
    while number < plan.steps:
        step.rate.fill_(plan.rate(number))
        step.fill(sampler.draw(batch))
        work()
        running += step.losses
        number += 1
        plan.look(number)
        if number % log_every == 0:
            answer, heads = (running / log_every).tolist()
            running.zero_()
            run.log(step=number, answer=answer, heads=heads)
    with torch.no_grad():
        for parameter, mean in zip(step.parameters, step.ema, strict=True):
            parameter.copy_(mean)
    run.log(event="trained", steps=number, **evaluate(run, model, held_out))


@torch.no_grad()
def evaluate(run: Run, model: StudentInTraining, held_out: GroupSampler, groups: int = 256) -> dict[str, float]:
    """Losses, error of the score head, and its pairwise agreement on unseen conditions' clean groups."""
    model.eval()
    losses, errors, agreed, pairs = [], [], 0, 0
    batch = 32 if run.device.type == "cuda" else 2
    for _ in range(max(1, run.scaled(groups, 2 * batch) // batch)):
        group = held_out.draw(batch, clean=True)
        with torch.autocast(run.device.type, dtype=torch.bfloat16, enabled=run.device.type == "cuda"):
            answer, heads = model(group)
            scores = model.last_scores(group)
        losses.append((float(answer), float(heads)))
        errors.append(float((scores - group["scores"]).abs().mean()))
        for a in range(4):
            for b in range(a):
                truth = group["scores"][:, a] - group["scores"][:, b]
                clear = truth.abs() > 5
                agreed += int(((scores[:, a] - scores[:, b])[clear] * truth[clear] > 0).sum())
                pairs += int(clear.sum())
    model.train()
    answer, heads = np.mean(losses, axis=0).tolist()
    return {
        "held_out_answer": answer,
        "held_out_heads": heads,
        "head_mae_points": float(np.mean(errors)),
        "head_agreement_beyond_5_points": agreed / max(1, pairs),
    }


def export(run: Run, model: StudentInTraining, tokenizer: Any) -> None:
    """The model folder in bfloat16, heads left out."""
    student = model.student.to("cpu", torch.bfloat16)
    folder = run.out / "student"
    folder.mkdir(exist_ok=True)
    write_folder(folder, student, tokenizer, SIZES)
    size = sum(file.stat().st_size for file in folder.iterdir())
    run.log(event="exported", bytes=size, parameters=sum(p.numel() for p in student.parameters()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies steps and data")
    parser.add_argument("--seed", type=int, default=30260)
    parser.add_argument("--device", default="cuda" if torch.cuda.device_count() else "cpu")
    parser.add_argument(
        "--max-seconds", type=float, default=270.0, help="the whole run, imports left out, fits into it"
    )
    parser.add_argument("--init", type=Path, help="model folder to go on from")
    parser.add_argument("--workers", type=int, help="processes that render (one a core)")
    parser.add_argument("--no-graph", action="store_true", help="plain steps instead of a CUDA graph")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "train.jsonl").unlink(missing_ok=True)
    run = Run(
        arguments.out,
        torch.device(arguments.device),
        arguments.seed,
        arguments.scale,
        arguments.max_seconds,
        not arguments.no_graph,
        arguments.workers,
        time.monotonic(),
    )
    student, tokenizer = load_student(run, arguments.init)
    # Forked workers first: a GPU must not be touched before.
    rows = PromptRows(student, tokenizer), PromptRows(student, tokenizer)
    data = load_data(run, rows)
    run.log(event="tokens", longest=int(data[0][1].ids_NL.shape[1]), vocabulary=len(tokenizer))
    form = AnswerForm.of(rows[0].chat, LABELS)
    torch.manual_seed(run.seed)
    # The delta rule computes in float32: this is for its products.
    torch.set_float32_matmul_precision("high")
    model = StudentInTraining(student).to(run.device)
    DeltaRule("chunked", run.device).install()
    model.train()
    model.prepare()
    samplers = [
        GroupSampler(futures, table, form, run.device, run.seed + 2 + i) for i, (futures, table) in enumerate(data)
    ]
    train(run, model, samplers[0], samplers[1])
    export(run, model, tokenizer)
    lines = [json.loads(line) for line in (run.out / "train.jsonl").read_text().splitlines()]
    metrics = {
        key: value for line in lines if line.get("event") in ("trained", "exported") for key, value in line.items()
    }
    (run.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    Console().print(f"wrote {run.out / 'student'}", markup=False)


if __name__ == "__main__":
    main()
