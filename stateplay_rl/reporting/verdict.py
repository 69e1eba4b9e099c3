"""The headline in words. It claims no more than the intervals allow."""

from __future__ import annotations

from collections.abc import Mapping

from stateplay_rl.nft.statistics import Interval, bootstrap_conditions
from stateplay_rl.reporting.blocks import Alarm, Headline
from stateplay_rl.reporting.numbers import change, compact, finite, plural, points, share
from stateplay_rl.reporting.run_data import Gain, Record, RunData


def run_headline(run: RunData, finished: bool, control: RunData | None = None) -> Headline:
    """Verdict on one run, beside its control when one was given.

    Args:
        finished: whether the run is sealed.
        control: the shuffled-reward run of the same length, None if none was given.
    """
    tail = [*_judges_sentence(run), *_state_sentences(run, finished)]
    gain = run.gain()
    if gain is None:
        return _without_gain(run, tail)
    first = _gain_sentence(gain, run.is_control)
    rest = [*_frozen_sentence(gain), *_memorising_sentence(run, gain), *tail]
    if run.is_control:
        return Headline("Control run: its movement is drift", "neutral", (first, *rest))
    if gain.interval.low is None:
        return Headline("One condition: no interval", "caution", (first, *rest))
    if not gain.interval.above_zero and not gain.interval.below_zero:
        return Headline("No measurable change", "caution", (first, *_control_sentence(gain, control), *rest))
    if gain.interval.below_zero:
        return Headline("Held-out reward fell", "bad", (first, *_control_sentence(gain, control), *rest))
    return _risen(gain, control, first, rest)


def _risen(gain: Gain, control: RunData | None, first: str, rest: list[str]) -> Headline:
    other = control.gain() if control is not None else None
    if other is None:
        missing = (
            "No control run stands beside it: on a small world drift alone can move the score, so "
            "give a run with shuffled rewards as a second path."
        )
        return Headline("Held-out reward rose; no control", "caution", (first, missing, *rest))
    sentences = (first, *_control_sentence(gain, control), *rest)
    if exceeds(gain.interval, other.interval):
        return Headline("Held-out reward rose, above the control", "good", sentences)
    return Headline("Rose, but not shown to exceed the control", "caution", sentences)


def exceeds(gain: Interval, control: Interval) -> bool:
    """Whether the whole interval lies above the whole interval of the control."""
    return gain.low is not None and control.high is not None and gain.low > control.high


def _gain_sentence(gain: Gain, is_control: bool) -> str:
    interval = gain.interval
    ends = (interval.low, interval.high)
    where = f"over {plural(len(gain.differences), 'held-out condition')}"
    name = "Held-out reward of this control" if is_control else "Held-out reward"
    before, after = points(gain.before.reward_mean), points(gain.after.reward_mean)
    if interval.above_zero or interval.below_zero:
        verb = "rose" if interval.above_zero else "fell"
        return f"{name} {verb} from {before} to {after}: {change(interval.mean, ends)} points {where}."
    if interval.low is None:
        return f"{name} went from {before} to {after}: {change(interval.mean)} points {where}, no interval."
    return (
        f"{name} went from {before} to {after}: {change(interval.mean, ends)} points {where}. "
        "The interval includes 0, so no change is shown."
    )


def _control_sentence(gain: Gain, control: RunData | None) -> tuple[str, ...]:
    other = control.gain() if control is not None else None
    if other is None:
        return ()
    moved = change(other.interval.mean, (other.interval.low, other.interval.high))
    sentence = f"The control with shuffled rewards moved {moved}."
    shared = set(gain.differences) & set(other.differences)
    if shared:
        gaps = {key: gain.differences[key] - other.differences[key] for key in sorted(shared)}
        excess = bootstrap_conditions(gaps, control.clusters if control is not None else None)
        if excess is not None:
            sentence += (
                f" Difference of the two gains on the same {plural(len(gaps), 'condition')}: "
                f"{change(excess.mean, (excess.low, excess.high))}."
            )
    if gain.interval.above_zero and not exceeds(gain.interval, other.interval):
        sentence += " The two intervals overlap: the rise may be drift."
    return (sentence,)


def _judges_sentence(run: RunData) -> tuple[str, ...]:
    """Said when the held-out judge changed on the way: its scores are not compared with those of the one before."""
    judges = run.heldout_judges
    if len(judges) < 2:
        return ()
    told = run.followed[0].judge_id
    others = ", ".join(name for name in judges if name != told)
    return (f"These are scores by {told}; those by {others} lie on another scale and are not compared with them.",)


def _frozen_sentence(gain: Gain) -> tuple[str, ...]:
    before, after = gain.before.frozen_display_share, gain.after.frozen_display_share
    if before is None or after is None:
        return ()
    return (f"Frozen displays went from {share(before)} to {share(after)} of the held-out samples.",)


def _memorising_sentence(run: RunData, gain: Gain) -> tuple[str, ...]:
    rewards = [value for value in (finite(r.get("reward_mean")) for r in run.metrics) if value is not None]
    if len(rewards) < 2 or gain.interval.above_zero or rewards[-1] - rewards[0] < 5:
        return ()
    return (
        f"The training reward rose by {points(rewards[-1] - rewards[0])} points while the held-out reward "
        "did not: this looks like memorising, not learning.",
    )


def _without_gain(run: RunData, tail: list[str]) -> Headline:
    own = run.followed
    if not own:
        first = "No held-out evaluation was recorded, so nothing can be said about learning."
        return Headline("No held-out evaluation yet", "neutral", (first, *tail))
    only = own[-1]
    first = (
        f"Held-out reward is {points(only.reward_mean)} [{points(only.ci95[0])}, {points(only.ci95[1])}] "
        f"over {plural(only.conditions, 'condition')} after {plural(only.batch, 'batch', 'batches')}; "
        "there is no second evaluation to compare it with."
    )
    return Headline("One evaluation only", "neutral", (first, *tail))


def _state_sentences(run: RunData, finished: bool) -> list[str]:
    done = plural(len(run.metrics), "batch", "batches")
    candidates = max((finite(r.get("candidates_seen")) or 0 for r in run.metrics), default=0)
    seen = f"{done}, {compact(candidates)} candidates seen"
    if not run.metrics:
        seen = "No batch is complete yet"
    state = f"{seen}. The run is {'sealed' if finished else 'unfinished: numbers may still change'}."
    severe = sum(1 for alarm in run.alarms if alarm.get("severity") == "alarm")
    mild = len(run.alarms) - severe
    if not run.alarms:
        return [state, "No alarm was raised."]
    return [state, f"{plural(severe, 'alarm')} and {plural(mild, 'warning')} were raised: read them first."]


def gather_alarms(records: tuple[Record, ...]) -> tuple[Alarm, ...]:
    """Alarms gathered by name and severity, severe ones first, each with its batches and worst value."""
    by_name: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for record in records:
        severity = "alarm" if record.get("severity") == "alarm" else "warning"
        by_name.setdefault((severity, str(record.get("name", "unnamed"))), []).append(record)
    gathered = []
    for (severity, name), members in sorted(by_name.items()):
        batches = [value for value in (finite(m.get("batch")) for m in members) if value is not None]
        last = members[-1]
        value, limit = finite(last.get("value")), finite(last.get("threshold"))
        where = ""
        if batches:
            span = (
                f"batch {compact(batches[0])}"
                if len(batches) == 1
                else f"batches {compact(min(batches))} to {compact(max(batches))}"
            )
            where = f"{plural(len(members), 'time')}, {span}; "
        detail = f"{where}last value {compact(value)}, threshold {compact(limit)} (alarms.jsonl)"
        kind = "alarm" if severity == "alarm" else "warning"
        gathered.append(Alarm(name, "alarm" if kind == "alarm" else "warning", str(last.get("message", "")), detail))
    return tuple(gathered)
