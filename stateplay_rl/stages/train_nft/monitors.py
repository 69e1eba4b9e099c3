"""Which of a batch's measurements cross a threshold: lines of `alarms.jsonl`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from stateplay_rl.config.train_nft import MonitorConfig, TrainNftConfig

Alarm = dict[str, Any]
Severity = Literal["warning", "alarm"]


class _Checks:
    """Collects the thresholds that one batch crosses; a measure that is missing crosses none."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.found: list[Alarm] = []

    def add(self, name: str, value: float | None, threshold: float, message: str, severity: Severity) -> None:
        """One crossed threshold."""
        self.found.append(
            {
                "batch": self._batch,
                "name": name,
                "value": value if value is None or math.isfinite(value) else None,
                "threshold": threshold,
                "severity": severity,
                "message": message,
            }
        )

    def above(
        self, name: str, value: float | None, threshold: float, message: str, severity: Severity = "warning"
    ) -> None:
        """Crossed when the value lies above the threshold, or is not a number."""
        if value is not None and not value <= threshold:
            self.add(name, value, threshold, message, severity)

    def below(
        self, name: str, value: float | None, threshold: float, message: str, severity: Severity = "warning"
    ) -> None:
        """Crossed when the value lies below the threshold, or is not a number."""
        if value is not None and not value >= threshold:
            self.add(name, value, threshold, message, severity)


def alarms_of(
    line: Mapping[str, Any], first: Mapping[str, Any] | None, config: TrainNftConfig, best_reward: float | None = None
) -> list[Alarm]:
    """Thresholds that a batch's metrics cross.

    Args:
        line: the batch's metrics.
        first: the run's first line, for drifts; None at the start.
        config: thresholds.
        best_reward: best mean reward of a batch of this stage so far, points.
    """
    checks = _Checks(line["batch"])
    _judge_alarms(line, config.monitors, best_reward, checks)
    _policy_alarms(line, config.monitors, checks)
    _drift_alarms(line, first, config.monitors, checks)
    _picture_alarms(line, first, config.monitors, checks)
    return checks.found


def _judge_alarms(line: Mapping[str, Any], m: MonitorConfig, best_reward: float | None, checks: _Checks) -> None:
    groups = max(line["groups"], 1)
    checks.above("failed_groups", line["groups_failed"] / groups, m.failed_share, "many judgements failed", "alarm")
    checks.above("tied_groups", line["groups_tied"] / groups, m.tied_share, "the judge ties most groups")
    checks.above("gated_groups", line["groups_gated"] / groups, m.gated_share, "most groups do not train", "alarm")
    for name in ("scores_at_0", "scores_at_100"):
        checks.above(name, line[name], m.saturated_share, "scores pile up at one end of the scale")
    checks.below("narrow_r", line["r_reach"], m.narrow_r, "every r lies near 1/2: hardly anything is learnt")
    if best_reward is not None and line["reward_mean"] is not None:
        drop = best_reward - line["reward_mean"]
        checks.above("reward_drop", drop, m.reward_drop_points, f"the reward is {drop:.1f} points below its best")
    checks.below("signal_cosine", line["signal_cosine"], m.signal_cosine, "halves of the batch pull in no common way")


def _policy_alarms(line: Mapping[str, Any], m: MonitorConfig, checks: _Checks) -> None:
    ratio = line["velocity_ratio_reference"]
    if ratio is not None and not ratio < m.velocity_ratio:
        message = "live velocities grow against the SFT model's"
        checks.add("velocity_ratio", ratio, m.velocity_ratio, message, "warning")
    if line["applied_steps"] and line["distance_live_old"] == 0.0:
        checks.add("live_equals_old", 0.0, 0.0, "steps were applied and live is still old", "alarm")
    if line["optimizer_steps"] and line["distance_live_reference"] == 0.0:
        checks.add("live_equals_reference", 0.0, 0.0, "steps were applied and nothing moved", "alarm")
    checks.above("skipped_steps", line["skipped_steps"], 0, "steps were not finite: " + _reasons(line))
    if line["applied_steps"]:
        share = line["zero_gradient_share"]
        checks.above("zero_gradients", share, m.zero_gradient_share, "most gradients are exactly 0", "alarm")
    for group, moved in line["update_ratio"].items():
        checks.above(f"update_ratio/{group}", moved, m.update_ratio, "one step moves the weights far")
    checks.above("sampler_mismatch", line["sampler_mismatch"], m.mismatch, "trainer and sampler disagree on v")


def _drift_alarms(line: Mapping[str, Any], first: Mapping[str, Any] | None, m: MonitorConfig, checks: _Checks) -> None:
    thirds = [value for value in line["loss_by_sigma"].values() if value]
    if len(thirds) > 1:
        ratio = max(thirds) / min(thirds)
        checks.above("loss_by_sigma", ratio, m.sigma_ratio, "the loss sits in one third of the noise levels")
    if first is None:
        return
    for part in ("pos", "neg"):
        before, now = first["loss"][part], line["loss"][part]
        if before and now is not None:
            checks.above(f"loss_{part}", now / before, m.loss_ratio, "the loss has grown since the first batch")
    for group, norm in line["grad_norm"].items():
        before = first["grad_norm"].get(group)
        if before:
            checks.above(f"grad_norm/{group}", norm / before, m.gradient_ratio, "gradients have grown far")


def _picture_alarms(
    line: Mapping[str, Any], first: Mapping[str, Any] | None, m: MonitorConfig, checks: _Checks
) -> None:
    real, picture = line["picture_real"], line["picture"]
    if real is not None and picture is not None:
        motion = picture["motion"] / max(real["motion"], 1e-6)
        checks.below("motion", motion, m.motion_ratio, "videos move less than real clips", "alarm")
        luma = abs(picture["luma"] - real["luma"])
        checks.above("luma", luma, m.luma_shift, "brightness departs from the real clips", "alarm")
        if first is not None and first["picture"] is not None and first["picture_real"] is not None:
            # The base's own error is no cheat; getting better shrinks it.
            grown = luma - abs(first["picture"]["luma"] - first["picture_real"]["luma"])
            message = "brightness moves away from the real clips: is it rewarded?"
            checks.above("luma_growth", grown, m.luma_growth, message, "alarm")
        saturation = abs(picture["saturation"] - real["saturation"])
        checks.above("saturation", saturation, m.saturation_shift, "colours depart from the real clips", "alarm")
    if first is not None and first["diversity"]:
        kept = line["diversity"] / first["diversity"]
        checks.below("diversity", kept, m.diversity_ratio, "candidates become alike")


def _reasons(line: Mapping[str, Any]) -> str:
    return "; ".join(line["skipped_because"][:3])


def timing_alarms(
    line: Mapping[str, Any], first_seconds: float | None, memory_total_mb: float | None, m: MonitorConfig
) -> list[Alarm]:
    """Batches that take ever longer, and GPUs that are nearly full.

    Args:
        line: the batch's line of `timings.jsonl`.
        first_seconds: what the first batch of this process took.
        memory_total_mb: memory of this GPU; None on a CPU.
    """
    checks = _Checks(line["batch"])
    total = sum(line["seconds"].values())
    if first_seconds:
        ratio = total / first_seconds
        checks.above("batch_seconds", ratio, m.batch_seconds_ratio, f"the batch took {total:.0f} s")
    if memory_total_mb:
        share = line["peak_memory_mb"] / memory_total_mb
        checks.above("gpu_memory", share, m.memory_share, "the GPU's memory is nearly full")
    return checks.found


def nothing_judged(batches_done: int, conditions: int) -> Alarm:
    """A held-out evaluation without one verdict: training goes on blind."""
    checks = _Checks(max(batches_done - 1, 0))
    message = "not one held-out group could be judged: the reasons stand in heldout/<batch>-<policy>/verdicts.jsonl"
    checks.add("heldout_failed", float(conditions), 0.0, message, "alarm")
    return checks.found[0]


def heldout_alarms(
    rewards: Sequence[float], referee: Sequence[float | None], batches_done: int, config: TrainNftConfig
) -> list[Alarm]:
    """The held-out reward fell well below its best; or the referee fell while the judge did not.

    Args:
        rewards: the judge's held-out means of this stage, in order.
        referee: the referee's means of the same evaluations, None where there is none.
    """
    checks = _Checks(max(batches_done - 1, 0))
    drop = max(rewards) - rewards[-1]
    message = f"held-out reward is {drop:.1f} points below its best"
    checks.above("heldout_drop", drop, config.monitors.heldout_drop_points, message, "alarm")
    seen = [(value, reward) for value, reward in zip(referee, rewards, strict=True) if value is not None]
    if seen and referee[-1] is not None:
        best, reward_then = max(seen)
        fallen = best - referee[-1]
        if rewards[-1] >= reward_then:
            message = f"the referee fell by {fallen:.1f} points while the judge's reward did not: the judge is fooled"
            checks.above("referee_falls", fallen, config.monitors.referee_drop_points, message, "alarm")
    return checks.found
