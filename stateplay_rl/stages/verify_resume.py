"""`sprl verify resume`: does a run of this very config survive being killed? A short run, shot and resumed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stateplay_rl.checks import drill_judge, kill_drill
from stateplay_rl.checks.directory import run_directory
from stateplay_rl.checks.lines import CheckLine, NotChecked, require, run_check
from stateplay_rl.checks.run_results import consumed, differences, largest_weight_difference, run_results
from stateplay_rl.config.base import config_dict, dump_config
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.verify import ResumeConfig
from stateplay_rl.errors import CheckError, InputError, OutputError
from stateplay_rl.runtime import pick_device
from stateplay_rl.stages.train_nft.permissions import preflight_config
from stateplay_rl.stages.verify import VerifySummary, default_out, seal_record
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.refusal import resolve_out

REPLACED_JUDGES = ("openai", "mix", "replay")
"""Paid ones, those that may hold a paid one, and stored scores that know other groups; `drill_judge` takes their place:
a drill must cost nothing."""
HELDOUT_CONDITIONS = 2
_REPORT = "a resumed run must not differ: please report it with the folder of the runs, and do not start a long run"
SHARE_OF_A_RUN = 0.7
"""Kills fall within so much of an undisturbed run's seconds after each start."""
MOST_LIVES = 20


@dataclass
class _Drilled:
    """The runs of a drill and what is known of them."""

    config: ResumeConfig
    drill: kill_drill.Drill
    folder: Path
    seconds: float = 0.0
    lives: int = 0

    @property
    def whole(self) -> Path:
        return self.folder / "whole"

    @property
    def killed(self) -> list[Path]:
        return [self.folder / f"killed-{life}" for life in range(self.lives)]

    @property
    def exact(self) -> bool:
        """Whether equal means equal to the byte: one process on a CPU."""
        return self.config.processes == 1 and pick_device().type == "cpu"


def run(config: ResumeConfig, out: Path | None = None, *, overwrite: bool = False) -> VerifySummary:
    """Run the short training undisturbed and killed, compare, write the record.

    The runs lie in `<out>-runs/`; they are removed when all passed, and kept to be looked at otherwise.

    Args:
        config: the training, and how often it is killed.
        out: directory to write; None for `verify-<utc>`.
        overwrite: empty `out` first.

    Returns:
        A line a promise. A broken promise is a failed line, not an exception.

    Raises:
        InputError: conditions that are missing or too few.
        OutputError: the output directory is not usable; nothing was run.
    """
    short = short_config(config)
    place = resolve_out(default_out() if out is None else out)
    folder = place.with_name(f"{place.name}-runs")
    if folder.exists():
        raise OutputError(f"{folder} holds the runs of an earlier drill", "look at them, then remove that folder")
    with OutputDirectory.open(
        place,
        schema="verify",
        version=layout.SCHEMAS["verify"],
        command="verify resume",
        config=config,
        inputs={"conditions": config.conditions},
        resume=False,
        overwrite=overwrite,
    ) as directory:
        folder.mkdir(parents=True)
        settings = folder / "config.yaml"
        settings.write_text(dump_config(short), encoding="utf-8")
        arguments = ("train-nft", str(config.conditions.absolute()), "--config", str(settings), "--quiet")
        drilled = _Drilled(config, kill_drill.Drill(arguments, folder / "log.txt", (config.processes,)), folder)
        lines = tuple(_lines(drilled))
        words = _words(drilled, short)
        summary = VerifySummary("resume", directory.path, lines, words)
        if summary.passed:
            shutil.rmtree(folder)
        else:
            summary = replace(summary, words=(*words, f"The runs are kept in {folder}."))
        seal_record(directory, summary, config.conditions, _measures(drilled), _facts(config))
    return summary


def short_config(config: ResumeConfig) -> TrainNftConfig:
    """The user's training with fewer conditions, no tracker, and a judge that costs nothing.

    Raises:
        InputError: fewer conditions than one batch takes.
    """
    train = config.train
    per_batch = train.conditions_per_batch
    available = len(ConditionStore.open(config.conditions).select("pass"))
    batches = min(config.batches, available // per_batch)
    if batches == 0:
        raise InputError(
            f"{config.conditions} has {available} conditions of pool 'pass', a batch takes {per_batch}",
            f"--set conditions_per_batch={max(available, 1)}",
        )
    changed: dict[str, Any] = {
        "stage": "a",
        "stage_conditions": batches * per_batch,
        "extend": None,
        "run_mode": "standard",
        "preflight": None,
        "force_without_gate": False,
        "tracker": "none",
        "encoded": None,
        "reward_model": None,
        "checkpoint_every_batches": 1,
    }
    values = config_dict(train)
    values |= {name: value for name, value in changed.items() if name in values}
    values["heldout"] |= {"conditions": min(train.heldout.conditions, HELDOUT_CONDITIONS)}
    values["monitors"] |= {"pause_on_alarm": False}  # a pause is an end that no kill made
    if train.judge.name in REPLACED_JUDGES:
        values["judge"] = {"name": drill_judge.NAME}
    return TrainNftConfig.model_validate(values)


def _lines(drilled: _Drilled) -> list[CheckLine]:
    """The drill in order; what needs a run that did not end is skipped."""
    lines = [run_check("undisturbed run", lambda: _undisturbed(drilled))]
    if lines[-1].status != "passed":
        return lines
    lines.append(run_check("killed and resumed", lambda: _kill_and_resume(drilled)))
    ended = lines[-1].status == "passed"
    for name, check in (
        ("results", _compare),
        ("conditions", _once),
        ("leftovers", _leftovers),
        ("directory", _directories),
    ):
        lines.append(run_check(name, lambda check=check: check(drilled) if ended else _not_ended()))  # type: ignore[misc]
    return lines


def _not_ended() -> str:
    raise NotChecked("the killed run did not end")


def _undisturbed(drilled: _Drilled) -> str:
    drilled.seconds = drilled.drill.run(drilled.whole)
    return f"{len(consumed(drilled.whole))} batches in {drilled.seconds:.1f} s"


def _kill_and_resume(drilled: _Drilled) -> str:
    drill, wanted = drilled.drill, drilled.config.kills
    draws = random.Random(drilled.config.seed)
    longest = max(SHARE_OF_A_RUN * drilled.seconds, 2 * kill_drill.EARLIEST_SECONDS)
    while len(drill.kills) < wanted and drilled.lives < MOST_LIVES:
        out = drilled.folder / f"killed-{drilled.lives}"
        drilled.lives += 1
        drill.shoot(out, draws, longest, wanted - len(drill.kills))
        drill.run(out, resume=True)
    require(bool(drill.kills), "no kill hit a living run: it ends too fast", "give more --batches")
    places = ", ".join(f"{k.seconds:.1f} s ({k.batches} batches, {k.groups} groups)" for k in drill.kills)
    return f"{len(drill.kills)} kills over {drilled.lives} runs, all ended with exit code 0; after {places}"


def _compare(drilled: _Drilled) -> str:
    whole = run_results(drilled.whole)
    for run in drilled.killed:
        if drilled.exact:
            wrong = differences(whole, run_results(run))
            if wrong:
                raise CheckError(f"{run.name} differs in {len(wrong)} results: {', '.join(wrong[:5])}", f"see {run}")
        else:
            gap = largest_weight_difference(drilled.whole, run)
            allowed = drilled.config.weight_tolerance
            if not gap <= allowed:
                raise CheckError(f"{run.name}: weights differ by {gap:.1e}, allowed {allowed:.1e}", f"see {run}")
    how = "to the byte" if drilled.exact else f"weights within {drilled.config.weight_tolerance:g}"
    return f"{len(whole)} results equal to the undisturbed run's ({how})"


def _once(drilled: _Drilled) -> str:
    """The same conditions in the same batches, none twice."""
    wanted = consumed(drilled.whole)
    for run in drilled.killed:
        found = consumed(run)
        again = kill_drill.twice([name for batch in found for name in batch])
        require(not again, f"{run.name} consumed {again[:3]} twice", _REPORT)
        require(found == wanted, f"{run.name} consumed other conditions than the undisturbed run", _REPORT)
    return f"{sum(map(len, wanted))} conditions, each consumed once and in the same batch"


def _leftovers(drilled: _Drilled) -> str:
    left = [str(path) for run in drilled.killed for path in kill_drill.half_files(run)]
    require(not left, f"half-written files are left: {left[:3]}", _REPORT)
    return "no half-written file is left"


def _directories(drilled: _Drilled) -> str:
    bad = [
        f"{line.name}: {line.detail}"
        for run in drilled.killed
        for line in run_directory(run)
        if line.status == "failed"
    ]
    require(not bad, f"verify dir finds: {'; '.join(bad[:3])}", _REPORT)
    return "verify dir finds every hash of the lineage as recorded"


def _words(drilled: _Drilled, short: TrainNftConfig) -> tuple[str, ...]:
    words = []
    if short.judge.name == drill_judge.NAME:
        words.append(f"The judge {drilled.config.train.judge.name} was replaced by fixed scores: nothing was paid.")
    if drilled.config.train.heldout.conditions > HELDOUT_CONDITIONS:
        words.append(f"Held-out evaluations used {HELDOUT_CONDITIONS} conditions.")
    return tuple(words)


def _measures(drilled: _Drilled) -> Mapping[str, Any]:
    return {
        "undisturbed_seconds": round(drilled.seconds, 3),
        "runs": drilled.lives,
        "kills": [asdict(kill) for kill in drilled.drill.kills],
        "processes": drilled.config.processes,
    }


def _facts(config: ResumeConfig) -> dict[str, Any]:
    return {"train_config_sha256": preflight_config(config.train), "processes": config.processes}
