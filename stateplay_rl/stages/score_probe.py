"""`sprl score --probe`: is the judge any good? Before money is spent on scores that cannot be told from noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.score import ProbeConfig, ScoreConfig
from stateplay_rl.errors import InputError, UsageError
from stateplay_rl.judges.base import Judge, checked
from stateplay_rl.judges.probe_plan import ProbePlan, Variant, planted_videos, variant_group
from stateplay_rl.judges.probe_statistics import Estimate, ProbeResult, Showing, analyse
from stateplay_rl.judges.remote import closing_judge, remote_judges
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.group_source import GroupSource, open_groups
from stateplay_rl.stages.judge_choice import make_judge
from stateplay_rl.stages.judging_pool import judged_lines
from stateplay_rl.stages.remote_judging import estimate, openai_judges, protocol_facts, require_ready
from stateplay_rl.stages.score import ScoreInputs
from stateplay_rl.stores import atomic, layout
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.jsonl import log_line, read_lines
from stateplay_rl.stores.manifest import OutputDirectory, utc_now

PLANTED_FOLDER = "planted"
SHOWINGS = "showings.jsonl"


@dataclass(frozen=True)
class ProbeSummary:
    """What a probe found. `lines`: name and text for people, the one number first."""

    out: Path
    judge_id: str
    result: ProbeResult
    enough: bool
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Task:
    group: StoredGroup
    variant: Variant
    planted: Mapping[str, Path]


def run(config: ScoreConfig, inputs: ScoreInputs, out: Path) -> ProbeSummary:
    """Show some groups in many ways, and seal what the scores say about the judge.

    Answers are kept in the request store, so a probe that is run again costs only what is missing.

    Raises:
        UsageError: the judge does not fit.
        InputError, CorruptionError: fewer than two groups, or damaged ones.
        OutsideError: a budget, or the endpoint.
    """
    source = open_groups(inputs.groups)
    judge = make_judge(config.judge, world=source.world, out=out, resend_in_doubt=inputs.resend_in_doubt)
    stores = [remote.store_folder for remote in openai_judges(judge)]
    require_ready(judge, out)
    with (
        closing_judge(judge),
        OutputDirectory.open(
            out,
            schema="probe",
            version=layout.SCHEMAS["probe"],
            command="score --probe",
            config=config,
            inputs={"groups": inputs.groups},
            resume=inputs.resume,
            overwrite=inputs.overwrite,
            protected=stores,
        ) as output,
    ):
        if output.already_sealed:
            return _summary(out, judge, _read_showings(out), config.probe)
        tasks = _tasks(source, config, output.path, bool(remote_judges(judge)))
        showings = _show(tasks, judge)
        summary = _summary(out, judge, showings, config.probe)
        _write(output, summary, showings, judge)
    return summary


def _tasks(source: GroupSource, config: ScoreConfig, out: Path, is_remote: bool) -> list[_Task]:
    """Every variant of every probed group, with the planted videos made."""
    wanted = min(config.probe.groups, config.limit or config.probe.groups)
    ids = tuple(source.roots)[:wanted]
    if len(ids) < 2:
        raise InputError(f"{source.path} has {len(ids)} groups, a probe needs at least 2", "roll out more groups")
    plan = ProbePlan(config.probe.repeats, config.probe.broken, config.probe.other_prompt and is_remote)
    groups = [source.read(group_id) for group_id in ids]
    tasks: list[_Task] = []
    for number, group in enumerate(groups):
        group.verify()
        other = groups[(number + 1) % len(groups)]
        planted = planted_videos(group, other, out / PLANTED_FOLDER / group.record.group_id)
        variants = plan.variants(group.record.candidates, number, has_reference="reference" in planted)
        tasks += [_Task(group, variant, planted) for variant in variants]
    return tasks


def _show(tasks: Sequence[_Task], judge: Judge) -> list[Showing]:
    with Progress("probe", len(tasks), "showings") as progress:
        for remote in openai_judges(judge):
            progress.say(estimate(remote, tasks[0].group, len(tasks)).sentence(remote))
        found: dict[int, Showing] = {}
        for line in judged_lines(
            judge, [str(n) for n in range(len(tasks))], lambda name: _ask(int(name), tasks[int(name)], judge), progress
        ):
            found[line["task"]] = line["showing"]
            progress.advance()
    return [found[number] for number in range(len(tasks))]


def _ask(number: int, task: _Task, judge: Judge) -> dict[str, Any]:
    group = variant_group(task.group, task.variant, task.planted)
    if remotes := remote_judges(judge):
        if len(remotes) > 1 or remotes[0] is not judge:
            raise UsageError("a mix with paid parts is not probed as a whole", "probe each part by itself")
        verdict = remotes[0].score_again(group, task.variant.repeat, other_prompt=task.variant.kind == "other_prompt")
    else:
        verdict = judge.score_group(group)
    verdict = checked(verdict, group.record.candidates)
    scores = tuple(float(s) for s in verdict.scores if s is not None)
    return {"task": number, "showing": Showing(task.group.record.group_id, task.variant, scores or None)}


def _write(output: OutputDirectory, summary: ProbeSummary, showings: Sequence[Showing], judge: Judge) -> None:
    value = {
        "judge_id": judge.judge_id,
        "protocol_sha256": judge.protocol_sha256,
        "verdict": "passed" if summary.enough else "failed",
        "enough": summary.enough,
        "summary": [f"{name}: {text}" for name, text in summary.lines],
        **summary.result.to_json(),
    }
    output.write_json(layout.PROBE, value)
    output.write_text(SHOWINGS, "".join(log_line(_line(showing)) for showing in showings))
    for remote in openai_judges(judge):
        atomic.write_json(remote.store_folder / layout.probe_file(remote.protocol_sha256), {"utc": utc_now(), **value})
    output.seal(extra={"protocols": protocol_facts(judge, output.path), "enough": summary.enough})


def _line(showing: Showing) -> dict[str, Any]:
    return {
        "group_id": showing.group_id,
        "kind": showing.variant.kind,
        "sources": list(showing.variant.sources),
        "repeat": showing.variant.repeat,
        "scores": None if showing.scores is None else list(showing.scores),
    }


def _read_showings(out: Path) -> list[Showing]:
    showings = []
    for line in read_lines(out / SHOWINGS):
        scores = None if line["scores"] is None else tuple(line["scores"])
        showings.append(
            Showing(line["group_id"], Variant(line["kind"], tuple(line["sources"]), line["repeat"]), scores)
        )
    return showings


def _summary(out: Path, judge: Judge, showings: Sequence[Showing], config: ProbeConfig) -> ProbeSummary:
    result = analyse(showings)
    ratio = result.signal_to_noise
    enough = bool(result.signal) and (
        result.noise_free or (ratio is not None and ratio >= config.minimum_signal_to_noise)
    )
    return ProbeSummary(out, judge.judge_id, result, enough, tuple(_lines(result, config, enough)))


def _lines(result: ProbeResult, config: ProbeConfig, enough: bool) -> list[tuple[str, str]]:
    """The result in words."""
    if result.noise_free:
        ratio = f"no noise at all; true differences {_points(result.signal)}"
    elif result.signal_to_noise is None:
        ratio = "not measurable: too few complete showings"
    else:
        ratio = (
            f"{result.signal_to_noise:.2f} (true differences {_points(result.signal)} over noise {_of(result.within)})"
        )
    lines = [
        ("signal to noise", ratio),
        ("verdict", "enough" if enough else f"too little: below {config.minimum_signal_to_noise:g}, or no differences"),
        ("noise within", _of(result.within)),
        ("noise between", _of(result.between)),
        ("position effect", "; ".join(f"place {n}: {_of(p)}" for n, p in enumerate(result.position, 1)) or "unknown"),
        ("duplicate gap", f"{_points(result.duplicate_gap)}, noise alone gives {_points(result.duplicate_expected)}"),
    ]
    lines += [
        (
            f"planted {name}",
            f"mean {found.score:.1f}, rank {found.rank:.2f}, lowest in {found.lowest:.0%} of the groups",
        )
        for name, found in result.planted.items()
    ]
    if result.prompt_shift is not None and result.prompt_reordered is not None:
        text = f"mean shift {result.prompt_shift:+.2f} points, {result.prompt_reordered:.0%} of pairs change order"
        lines.append(("text about opponent", text))
    lines.append(("showings", f"{result.showings} of {result.groups} groups, {result.missing} without scores"))
    return lines


def _points(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} points"


def _of(found: Estimate | None) -> str:
    if found is None:
        return "unknown"
    if found.low is None or found.high is None:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
