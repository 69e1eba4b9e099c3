"""`sprl score`: groups and a judge in, one verdict a group out.

Finished verdicts go to an append-only log inside the unfinished output, so that a kill at any instruction
loses at most the group being judged; `--resume` goes on behind the last whole line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from stateplay_rl.config.score import ScoreConfig
from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.judges.base import Judge
from stateplay_rl.judges.payload import UnfitGroupError
from stateplay_rl.judges.remote import closing_judge
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.group_source import GroupSource, open_groups
from stateplay_rl.stages.judge_choice import make_judge
from stateplay_rl.stages.judging_pool import judged_lines
from stateplay_rl.stages.remote_judging import (
    costs_of,
    estimate,
    openai_judges,
    protocol_facts,
    require_ready,
    require_room,
)
from stateplay_rl.stages.verdicts import resume_lines, verdict_line, write_score_table
from stateplay_rl.stores import atomic, layout
from stateplay_rl.stores.foreign import parse_json
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.jsonl import LineLog, log_line
from stateplay_rl.stores.manifest import OutputDirectory, is_sealed, read_manifest
from stateplay_rl.stores.refusal import refuse_overlap
from stateplay_rl.stores.sealed import sealed_object


@dataclass(frozen=True)
class ScoreInputs:
    """What `score` reads, and how it treats an existing output."""

    groups: Path
    resume: bool = False
    overwrite: bool = False
    resend_in_doubt: bool = False


@dataclass(frozen=True)
class ScoreSummary:
    """What came out. Points are 0..100; statistics are over fully scored groups only, None without any.

    Args:
        failed_reasons: reason code -> groups.
        reward_by_class: mechanics class -> mean points.
        std_within: mean population deviation inside a group, points.
        requests: attempts, tokens and cost by outcome (`judges.costs.CostTable`); None for a judge that pays nothing.
        already_done: the output was finished before; nothing was judged.
    """

    out: Path
    judge_id: str
    groups: int
    scored: int
    failed: int
    in_doubt: int
    failed_reasons: dict[str, int]
    reward_mean: float | None
    reward_by_class: dict[str, float]
    std_within: float | None
    scores_at_0: float | None
    scores_at_100: float | None
    requests: dict[str, Any] | None = None
    already_done: bool = False


def run(config: ScoreConfig, inputs: ScoreInputs, out: Path) -> ScoreSummary:
    """Judge every group once and seal `scores/`.

    Args:
        config: judge and limit.
        inputs: the groups, and what to do with an existing output.
        out: the directory to write.

    Raises:
        UsageError: the judge does not fit, or a resume with another judge.
        InputError, CorruptionError: groups that are missing, unfinished or damaged.
        OutputError: the output is finished, foreign, locked, or overlaps with an input.
    """
    source = open_groups(inputs.groups)
    judge = make_judge(config.judge, world=source.world, out=out, resend_in_doubt=inputs.resend_in_doubt)
    reads = {"groups": inputs.groups}
    reads |= {f"scores-{n}": path for n, path in enumerate(_replayed(config))}
    reads |= {f"reward_model-{n}": path for n, path in enumerate(_students(config))}
    stores = [remote.store_folder for remote in openai_judges(judge)]
    for store in stores:
        refuse_overlap(store, reads, ())
    require_ready(judge, out)
    with (
        closing_judge(judge),
        OutputDirectory.open(
            out,
            schema="scores",
            version=layout.SCHEMAS["scores"],
            command="score",
            config=config,
            inputs=reads,
            resume=inputs.resume,
            overwrite=inputs.overwrite,
            protected=stores,
            extend=_completes(out, inputs),
        ) as output,
    ):
        if output.already_sealed:
            return _summary(
                output.path, judge.judge_id, _verdict_lines(output.path), _sealed_requests(output.path), True
            )
        return _score_and_seal(output, source, judge, config, inputs)


def _completes(out: Path, inputs: ScoreInputs) -> bool:
    """Whether a finished output is opened again because groups of it are in doubt."""
    if not (inputs.resume and inputs.resend_in_doubt and is_sealed(out)):
        return False
    return bool(read_manifest(out, schema="scores").extra.get("in_doubt"))


def _score_and_seal(
    output: OutputDirectory, source: GroupSource, judge: Judge, config: ScoreConfig, inputs: ScoreInputs
) -> ScoreSummary:
    listed = _groups_to_read(output, source, config.limit)
    lines = _score_all(output, source, listed, judge, inputs.resend_in_doubt)
    table = output.path / layout.SCORES
    output.hasher.record(table, write_score_table(table, lines))
    costs = costs_of([judge], listed)
    summary = _summary(output.path, judge.judge_id, lines, None if costs is None else costs.to_json())
    plain = {name: value for name, value in asdict(summary).items() if name not in ("out", "already_done")}
    output.write_json(layout.SUMMARY, plain)
    output.seal(
        extra={
            "judge_id": judge.judge_id,
            "protocol_sha256": judge.protocol_sha256,
            "protocols": protocol_facts(judge, output.path),
            "world": source.world,
            "groups_sealed": source.sealed,
            "group_sha256": listed,
            **{name: plain[name] for name in ("groups", "scored", "failed", "in_doubt", "reward_mean")},
        }
    )
    return summary


def _replayed(config: ScoreConfig) -> list[Path]:
    specs = [config.judge, *config.judge.parts.values()]
    return sorted({spec.scores for spec in specs if spec.scores is not None})


def _students(config: ScoreConfig) -> list[Path]:
    specs = [config.judge, *config.judge.parts.values()]
    return sorted({spec.reward_model for spec in specs if spec.reward_model is not None})


def _groups_to_read(output: OutputDirectory, source: GroupSource, limit: int | None) -> dict[str, str]:
    """Group id -> hash of its `group.json`, fixed at the first start: an open run may have grown since.

    Raises:
        InputError: no finished group.
        CorruptionError: the list in the output is damaged.
    """
    file = output.path / layout.GROUPS_READ
    if file.is_file():
        try:
            listed = parse_json(file.read_bytes())
            return {str(group_id): str(sha256) for group_id, sha256 in listed.items()}
        except (ValueError, AttributeError) as error:
            raise CorruptionError(f"{file} is damaged: {error}", "start over with --overwrite") from error
    ids = tuple(source.roots)[:limit]
    if not ids:
        raise InputError(f"no finished group in {source.path}", "roll out first: sprl rollout")
    listed = source.hashes(ids)
    output.write_json(layout.GROUPS_READ, listed)
    return listed


def _score_all(
    output: OutputDirectory,
    source: GroupSource,
    listed: Mapping[str, str],
    judge: Judge,
    resend_in_doubt: bool,
) -> list[dict[str, Any]]:
    """Verdict lines of all listed groups, in the order of their ids; those in the log are kept."""
    path = output.path / layout.VERDICTS
    lines = resume_lines(path, judge)
    if resend_in_doubt and any(line["status"] == "in_doubt" for line in lines):
        lines = [line for line in lines if line["status"] != "in_doubt"]
        _rewrite(path, lines)
    log = LineLog(path)
    done = {line["group_id"] for line in lines}
    missing = [name for name in listed if name not in done]
    with Progress("score", len(listed), "groups") as progress:
        if missing:
            _announce(judge, source.read(missing[0], listed[missing[0]]), len(missing), progress)
        progress.advance(len(done))
        for line in judged_lines(
            judge, missing, lambda name: verdict_line(source.read(name, listed[name]), judge), progress
        ):
            log.append(line)
            lines.append(line)
            progress.advance()
    place = {name: number for number, name in enumerate(listed)}
    ordered = sorted(lines, key=lambda line: place[line["group_id"]])
    if ordered != lines:
        _rewrite(path, ordered)
    return ordered


def _rewrite(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    atomic.write_text(path, "".join(log_line(line) for line in lines))


def _announce(judge: Judge, group: StoredGroup, groups: int, progress: Progress) -> None:
    """What it may cost, before anything is sent."""
    for remote in openai_judges(judge):
        try:
            found = estimate(remote, group, groups)
        except UnfitGroupError as error:
            progress.say(f"no estimate: {error.what}")
            continue
        require_room(remote, found)
        progress.say(found.sentence(remote))
        if remote.spec.protocol.mode == "development":
            progress.say("judge.protocol.mode is `development`: example images and full-length videos are not demanded")


def _sealed_requests(folder: Path) -> dict[str, Any] | None:
    return sealed_object(folder, "scores", layout.SUMMARY).get("requests")


def _verdict_lines(folder: Path) -> list[dict[str, Any]]:
    return LineLog(folder / layout.VERDICTS).read()


def _summary(
    out: Path,
    judge_id: str,
    lines: Sequence[Mapping[str, Any]],
    requests: dict[str, Any] | None,
    already_done: bool = False,
) -> ScoreSummary:
    full = [line for line in lines if line["status"] == "scored"]
    scores = [score for line in full for score in line["scores"]]
    by_class: dict[str, list[float]] = defaultdict(list)
    for line in full:
        by_class[line["mechanics_class"]] += line["scores"]
    failed_lines = [line for line in lines if line["status"] == "failed"]
    return ScoreSummary(
        out=out,
        judge_id=judge_id,
        groups=len(lines),
        scored=len(full),
        failed=len(failed_lines),
        in_doubt=sum(line["status"] == "in_doubt" for line in lines),
        failed_reasons=dict(sorted(Counter(_code(line["reason"]) for line in failed_lines).items())),
        reward_mean=fmean(scores) if scores else None,
        reward_by_class={name: fmean(values) for name, values in sorted(by_class.items())},
        std_within=fmean(pstdev(line["scores"]) for line in full) if full else None,
        scores_at_0=sum(score == 0 for score in scores) / len(scores) if scores else None,
        scores_at_100=sum(score == 100 for score in scores) / len(scores) if scores else None,
        requests=requests,
        already_done=already_done,
    )


def _code(reason: str) -> str:
    """Reason code: what stands before the first colon; the rest names the group at hand."""
    return reason.partition(":")[0]
