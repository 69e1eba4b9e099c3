"""Directories of every kind that a report reads: small, with drawn pictures, through the real stores."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import (
    DATA_ROOT,
    ConditionRecord,
    RejectedRow,
    write_condition_files,
    write_conditions,
)
from stateplay_rl.stores.groups import GroupRecord, GroupRow, GroupStore, StoredGroup, write_groups_parquet
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.scores import ScoreRow, ScoreTable

CLASSES = ("macro_fail", "macro_success", "normal", "result_lose", "result_win")
FRAMES, ROWS, HEIGHT, WIDTH = 9, 12, 64, 96
SHA = "ab" * 32


class FixtureLoss(FrozenConfig):
    full_schedule: bool = False


class FixtureHeldout(FrozenConfig):
    policy: str = "live"


class FixtureMonitors(FrozenConfig):
    velocity_ratio: float = 1.05


class FixtureConfig(FrozenConfig):
    """The few keys of a run's config that the report looks at."""

    control: Literal["none", "shuffled_rewards"] = "none"
    seed: int = 0
    loss: FixtureLoss = FixtureLoss()
    heldout: FixtureHeldout = FixtureHeldout()
    monitors: FixtureMonitors = FixtureMonitors()


def draw_video(seed: int, frozen: bool = False) -> np.ndarray:
    """uint8 [9, 64, 96, 3]: two bars above two figures, one of which walks."""
    generator = np.random.default_rng(seed)
    frames = np.full((FRAMES, HEIGHT, WIDTH, 3), (34, 40, 58), np.uint8)
    frames[:, 52:] = (74, 66, 52)
    speed = int(generator.integers(2, 5))
    for t in range(FRAMES):
        moment = 0 if frozen else t
        frames[t, 4:7, 4:44] = frames[t, 4:7, 52:92] = (60, 20, 20)
        frames[t, 4:7, 4:44] = (90, 200, 90)
        frames[t, 4:7, 52 : 92 - 3 * moment] = (90, 200, 90)
        x = 20 + speed * moment
        frames[t, 32:54, x : x + 8] = (200, 90, 70)
        frames[t, 30:54, 66:74] = (80, 120, 210)
    return frames


def held_buttons(seed: int) -> tuple[tuple[int, ...], ...]:
    """[12][11], constant over windows of 4 rows."""
    generator = np.random.default_rng(seed)
    windows = (generator.random((ROWS // 4, 11)) < 0.25).astype(int)
    return tuple(tuple(int(v) for v in windows[row // 4]) for row in range(ROWS))


def write_group(
    store: GroupStore,
    name: str,
    condition: str,
    mechanics_class: str,
    *,
    batch: int = 0,
    samples: int = 4,
    prompt: str = "The opponent keeps his distance.",
    reference: bool = True,
) -> StoredGroup:
    """One finished group; its candidates differ."""
    seed = sum(map(ord, name + condition))
    record = GroupRecord(
        group_id=name,
        condition_id=condition,
        batch=batch,
        policy_sha256=SHA,
        world_sha256="cd" * 32,
        sampler="euler",
        sampling_steps=5,
        seeds=tuple(range(seed, seed + samples)),
        prompt=prompt,
        fps=20.0,
        frames=FRAMES,
        latent_frames=3,
        buttons=held_buttons(seed),
        action_bin_edges=((0, 1), (1, 5), (5, 9)),
        mechanics_class=mechanics_class,
    )
    videos = [draw_video(seed + k, frozen=k % 3 == 2) for k in range(samples)]
    latents = [torch.zeros(2, 3, 2, 2, dtype=torch.bfloat16)] * samples
    return store.write(record, videos[0][0], latents, videos, draw_video(seed) if reference else None)


def open_output(out: Path, schema: str, inputs: dict[str, Path], config: FrozenConfig) -> OutputDirectory:
    """A fresh output directory."""
    command = {"run": "train-nft", "groups": "rollout", "scores": "score"}.get(schema, schema)
    return OutputDirectory.open(
        out,
        schema=schema,
        version=1,
        command=command,
        config=config,
        inputs=inputs,
        resume=False,
        overwrite=False,
    )


def make_conditions(out: Path, count: int = 10, prompt: str = "SF3 Game.") -> list[str]:
    """A sealed conditions directory; returns its condition ids."""
    ids = [f"c{index:03d}{'0' * 12}" for index in range(count)]
    with open_output(out, "conditions", {}, FixtureConfig()) as output:
        records = []
        for index, name in enumerate(ids):
            held = np.array(held_buttons(index))
            write_condition_files(output, name, draw_video(index)[0], held, held, {})
            records.append(_condition(name, index, prompt))
        rejected = [RejectedRow(3, "clips/<b>bad</b>.mp4", "video_short", "5 frames")]
        write_conditions(output, records, rejected)
        output.seal(extra={DATA_ROOT: "."})
    return ids


def _condition(name: str, index: int, prompt: str) -> ConditionRecord:
    mechanics_class = CLASSES[index % len(CLASSES)]
    return ConditionRecord(
        condition_id=name,
        clip=None,
        prompt=prompt,
        mechanics_class=mechanics_class,
        distribution=mechanics_class.capitalize(),
        npc_category="Defense",
        strategy="block",
        fps=20.0,
        frames=FRAMES,
        latent_frames=3,
        action_rows=ROWS,
        action_bin_edges=((0, 1), (1, 5), (5, 9)),
        first_frame_sha256=SHA,
        actions_sha256=SHA,
        cluster_id=index // 2,
        pool="heldout" if index % 2 else "pass",
        student_split="train",
        order=index,
        warnings=("action_out_of_window",) if index == 0 else (),
    )


def make_groups(out: Path, count: int = 6, prompt: str = "The opponent keeps his distance.") -> list[str]:
    """A sealed groups directory; the last group has no real clip."""
    names = [f"g{index:03d}" for index in range(count)]
    with open_output(out, "groups", {}, FixtureConfig()) as output:
        store = GroupStore(output.path)
        rows = []
        for index, name in enumerate(names):
            kind = CLASSES[index % len(CLASSES)]
            has_clip = index != count - 1
            group = write_group(store, name, f"c{index:03d}", kind, prompt=prompt, reference=has_clip)
            rows.append(GroupRow.of(group))
        write_groups_parquet(output.path / layout.GROUPS, rows)
        output.seal()
    return names


def score_rows(names: Sequence[str], failed: Sequence[str] = ()) -> list[ScoreRow]:
    """Four scores a group, spread out; groups in `failed` have none."""
    rows = []
    for index, name in enumerate(names):
        for k in range(4):
            broken = name in failed
            rows.append(
                ScoreRow(
                    group_id=name,
                    candidate=k,
                    score=None if broken else float((20 * k + 7 * index) % 101),
                    status="failed" if broken else "scored",
                    reason="unreadable: no bar found" if broken else None,
                    judge_id="referee",
                    protocol_sha256=SHA,
                    request_id=None,
                )
            )
    return rows


def make_scores(out: Path, groups: Path, names: Sequence[str], failed: Sequence[str] = ()) -> None:
    """A sealed scores directory with the judge's details."""
    with open_output(out, "scores", {"groups": groups}, FixtureConfig()) as output:
        ScoreTable(score_rows(names, failed)).write(output.path / layout.SCORES)
        log = LineLog(output.path / "verdicts.jsonl")
        for index, name in enumerate(names):
            details = {"candidates": [{"hp_error": 0.25 * k, "frozen_display": k == 2} for k in range(4)]}
            line = {"group_id": name, "mechanics_class": CLASSES[index % len(CLASSES)], "details": details}
            log.append(line)
        output.seal()


@dataclass(frozen=True)
class RunPlan:
    """What a fixture run should look like."""

    batches: int = 6
    gain: float = 26.0
    heldout: int = 12
    evaluations: tuple[int, ...] = (0, 3, 6)
    sealed: bool = True
    control: bool = False
    alarms: int = 0
    groups_per_batch: int = 2
    videos: bool = True
    requests: dict[str, float | None] | None = None


def make_run(out: Path, plan: RunPlan, conditions: Path | None = None, prompt: str = "Keep away.") -> None:
    """A run directory with everything that train-nft logs."""
    config = FixtureConfig(control="shuffled_rewards" if plan.control else "none")
    inputs = {"conditions": conditions} if conditions is not None else {}
    with open_output(out, "run", inputs, config) as output:
        for batch in range(plan.batches):
            LineLog(output.path / layout.METRICS).append(metrics_line(batch, plan))
            LineLog(output.path / layout.TIMINGS).append(timing_line(batch) | {"requests": plan.requests})
        for batch in plan.evaluations:
            _evaluation(output.path, batch, plan, prompt)
        for number in range(plan.alarms):
            LineLog(output.path / layout.ALARMS).append(alarm_line(number))
        _segment(output.path, plan, prompt)
        if plan.sealed:
            output.seal()


def metrics_line(batch: int, plan: RunPlan) -> dict[str, object]:
    """One line of metrics.jsonl."""
    progress = (batch + 1) / max(plan.batches, 1)
    rise = plan.gain * progress
    wave = 2.0 * math.sin(1.7 * batch)
    return {
        "batch": batch,
        "optimizer_steps": 8 * (batch + 1),
        "candidates_seen": 64 * (batch + 1),
        "groups": 16,
        "groups_tied": batch % 2,
        "groups_gated": 1,
        "groups_failed": 1 if batch == 2 else 0,
        "reward_mean": 52.0 + rise + wave,
        "reward_by_class": {name: 48.0 + 2 * i + rise + wave for i, name in enumerate(CLASSES)},
        "std_within": 24.0 - 9 * progress,
        "std_batch": 30.0 - 8 * progress,
        "scores_at_0": 0.05,
        "scores_at_100": 0.02 + 0.1 * progress,
        "r_histogram": [1, 2, 6, 9, 14, 14, 9, 6, 2, 1],
        "loss": {
            "total": 9.9 - progress,
            "nft": 9.8 - progress,
            "pos": 1.9 - 0.1 * progress,
            "neg": 2.1 + 0.1 * progress,
            "fm_real": 0.4,
            "transition_real": None,
            "reference": None,
        },
        "loss_by_sigma": {"low": 1.4, "mid": 1.9, "high": 2.6 - 0.3 * progress},
        "grad_norm": {"full": 0.8 + 0.2 * math.cos(batch)},
        "update_ratio": {"full": 0.0004},
        "distance_live_old": 0.11 + 0.01 * batch,
        "distance_live_reference": 0.13 * (batch + 1),
        "velocity_ratio_reference": 1.0 + 0.004 * batch,
        "signal_cosine": 0.3 + 0.1 * progress if batch % 2 == 0 else None,
        "sampler_mismatch": 0.0 if batch % 3 == 0 else None,
        "eta": 0.008 * (batch + 1),
        "diversity": 11.0 - progress,
        "picture": {"luma": 61.0 + progress, "saturation": 44.0, "motion": 2.1 + 0.3 * progress},
        "picture_real": {"luma": 61.5, "saturation": 44.5, "motion": 2.6},
        "skipped_steps": 0,
    }


def timing_line(batch: int) -> dict[str, object]:
    """One line of timings.jsonl."""
    seconds = {
        "rollout": 5.1 + 0.1 * (batch % 3),
        "score": 0.6,
        "train": 4.2,
        "evaluate": 3.0,
        "checkpoint": 0.4,
    }
    return {"batch": batch, "seconds": seconds, "peak_memory_mb": 1450.0 + batch}


def alarm_line(number: int) -> dict[str, object]:
    """One line of alarms.jsonl: even numbers are warnings."""
    severe = number % 2 == 1
    return {
        "batch": number,
        "name": "heldout_drop" if severe else "velocity_ratio",
        "value": 6.5 if severe else 1.06,
        "threshold": 5.0 if severe else 1.05,
        "message": "held-out reward fell by 6.5 points" if severe else "live velocities grow",
        "severity": "alarm" if severe else "warning",
    }


def _evaluation(run: Path, batch: int, plan: RunPlan, prompt: str) -> None:
    folder = layout.heldout_folder(batch, "live")
    scores: dict[str, list[float]] = {}
    by_class: dict[str, list[float]] = {}
    for index in range(plan.heldout):
        condition, kind = f"h{index:03d}", CLASSES[index % len(CLASSES)]
        own = plan.gain * batch / max(plan.batches, 1) * (0.5 + index / max(plan.heldout - 1, 1))
        base = 38.0 + 3 * (index % 7)
        scores[condition] = [min(100.0, max(0.0, base + own + shift)) for shift in (-2.0, 2.0)]
        by_class.setdefault(kind, []).extend(scores[condition])
        if plan.videos:
            write_group(GroupStore(run / folder), f"{condition}-{batch}", condition, kind, samples=2, prompt=prompt)
    everything = [value for row in scores.values() for value in row]
    mean = sum(everything) / len(everything)
    LineLog(run / layout.HELDOUT).append(
        {
            "batch": batch,
            "policy": "live",
            "policy_sha256": f"{batch:02d}" * 32,
            "candidates_seen": 64 * batch,
            "conditions": plan.heldout,
            "samples": 2,
            "reward_mean": mean,
            "ci95": [mean - 4.0, mean + 4.0],
            "by_class": {name: sum(values) / len(values) for name, values in by_class.items()},
            "frozen_display_share": 0.4 - 0.3 * batch / max(plan.batches, 1),
            "scores": scores,
            "groups": folder,
        }
    )


def _segment(run: Path, plan: RunPlan, prompt: str) -> None:
    segment = run / layout.SEGMENTS_FOLDER / layout.segment_folder(0, "a")
    store = GroupStore(segment / layout.GROUPS_FOLDER)
    names = []
    for batch in range(plan.batches):
        for index in range(plan.groups_per_batch):
            name = f"b{batch}g{index}"
            kind = CLASSES[(batch + index) % len(CLASSES)]
            write_group(store, name, f"t{batch}{index}", kind, batch=batch, prompt=prompt)
            names.append(name)
    if plan.sealed and names:
        ScoreTable(score_rows(names, failed=names[1:2])).write(segment / layout.SCORES)


def make_audit(out: Path, verdict: str = "passed") -> None:
    """A sealed audit directory."""
    with open_output(out, "audit", {}, FixtureConfig()) as output:
        result = {
            "verdict": verdict,
            "reasons": ["every parameter has a source"],
            "file": {"sha256": SHA, "size": 3145728, "name": "<script>alert(1)</script>"},
            "coverage": [
                {"module": "transformer", "parameters": 1450000, "covered": 1450000},
                {"module": "latent_state", "parameters": 280000, "covered": None},
            ],
        }
        (output.path / layout.AUDIT).write_text(json.dumps(result), encoding="utf-8")
        output.seal()


def many_groups(root: Path, count: int) -> None:
    """`count` finished groups that share one group's files by hard links, so that writing them is quick."""
    store = GroupStore(root)
    first = write_group(store, "g00000", "c00000", "normal", samples=4)
    value = json.loads((first.folder / layout.GROUP).read_bytes())
    for index in range(1, count):
        folder = root / f"g{index:05d}"
        folder.mkdir()
        for name in first.files:
            (folder / name).hardlink_to(first.folder / name)
        kind = CLASSES[index % len(CLASSES)]
        own = value | {"group_id": folder.name, "condition_id": f"c{index:05d}", "mechanics_class": kind}
        (folder / layout.GROUP).write_text(json.dumps(own), encoding="utf-8")


def standard_plan(**changes: object) -> RunPlan:
    """The usual run with some fields changed."""
    return replace(RunPlan(), **changes)  # type: ignore[arg-type]
