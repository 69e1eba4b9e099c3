"""The page of a training run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from stateplay_rl.nft.signal import CLEAR_COSINE
from stateplay_rl.nft.statistics import bootstrap_conditions
from stateplay_rl.reporting import run_charts
from stateplay_rl.reporting.blocks import (
    Block,
    Chart,
    ChartGrid,
    Column,
    Gallery,
    Prose,
    Section,
    SourcePage,
    Stat,
    StatRow,
    Table,
    Threshold,
    Tone,
)
from stateplay_rl.reporting.cards import browser_note, group_cards
from stateplay_rl.reporting.context import ReportContext
from stateplay_rl.reporting.heldout_gallery import embedded_conditions, heldout_gallery
from stateplay_rl.reporting.label_section import label_section
from stateplay_rl.reporting.label_set import is_of_run
from stateplay_rl.reporting.lineage import lineage_of
from stateplay_rl.reporting.numbers import change, compact, finite, mapping_of, plural, points
from stateplay_rl.reporting.referee_section import drift_by_horizon, drift_table, referee_section
from stateplay_rl.reporting.run_cost import cost_section
from stateplay_rl.reporting.run_data import Gain, RunData, column, names_under, stage_name
from stateplay_rl.reporting.run_files import heldout_groups, run_groups
from stateplay_rl.reporting.sources import Source
from stateplay_rl.reporting.stages_section import stages_section
from stateplay_rl.reporting.verdict import gather_alarms, run_headline

LOSS_PARTS = ("total", "nft", "pos", "neg", "fm_real", "transition_real", "reference")


def run_page(source: Source, run: RunData, control: RunData | None, context: ReportContext) -> SourcePage:
    """The report on one run, beside its control when one was given."""
    gain = run.gain()
    policies = tuple(
        (f"policy, {name}", f"{evaluations[0].policy_sha256} to {evaluations[-1].policy_sha256}")
        for name in sorted({e.policy for e in run.evaluations})
        if (evaluations := run.evaluations_of(name))
    )
    sections = [
        _outcome(run, gain),
        stages_section(source, run),
        _before_after(source, gain, context),
        *_labels(source, run, context),
        _by_class(source, run, gain),
        referee_section(run),
        _picture(run),
        _groups(source, run, gain, context),
        _signal(run),
        _policy(run),
        _loss(run),
        cost_section(run),
        Section("batches", "Every batch", (_batch_table(run),)),
    ]
    return SourcePage(
        source.key,
        "training run" + (" with shuffled rewards (control)" if run.is_control else ""),
        source.name,
        run_headline(run, source.finished, control),
        gather_alarms(run.alarms),
        tuple(section for section in sections if section is not None and section.blocks),
        lineage_of(source, context.out, policies, search=context.places),
    )


def _grid(charts: Iterable[Chart | None], columns: Literal[2, 3] = 2) -> tuple[Block, ...]:
    present = tuple(chart for chart in charts if chart is not None)
    return (ChartGrid(present, columns),) if present else ()


def _outcome(run: RunData, gain: Gain | None) -> Section:
    stats = []
    if gain is not None:
        ends = (gain.interval.low, gain.interval.high)
        tone: Tone = "good" if gain.interval.above_zero else "bad" if gain.interval.below_zero else "neutral"
        unit = "clusters" if run.clusters else "conditions"
        units = f"{gain.interval.clusters} {unit}"
        stats += [
            Stat("held-out before", points(gain.before.reward_mean), "heldout.jsonl: reward_mean, first line"),
            Stat("held-out after", points(gain.after.reward_mean), "heldout.jsonl: reward_mean, last line"),
            Stat(
                "gain, 95 % interval",
                change(gain.interval.mean),
                f"heldout.jsonl: scores, paired by condition, bootstrap over {unit}",
                f"[{compact(ends[0], digits=1)}, {compact(ends[1], digits=1)}], {units}",
                tone,
            ),
        ]
    # Of the first stage: another stage's judge has a scale of its own.
    stage, batches = run.stages[0] if run.stages else ("", range(0))
    means = column(run.metrics, "reward_mean")
    rewards = [means[i] for i in batches if means[i] is not None]
    if rewards:
        trained = f"{points(rewards[0])} to {points(rewards[-1])}"
        of_stage = stage_name(stage) if len(run.stages) > 1 else ""
        stats.append(Stat("training reward", trained, "metrics.jsonl: reward_mean, first and last batch", of_stage))
    if run.metrics:
        seen = column(run.metrics, "candidates_seen")[-1]
        stats.append(Stat("candidates seen", compact(seen), "metrics.jsonl: candidates_seen"))
        steps = [int(v) for v in column(run.metrics, "optimizer_steps") if v is not None]
        detail = f"{plural(len(run.metrics), 'batch', 'batches')}"
        if steps:
            stats.append(Stat("optimizer steps", compact(steps[-1]), "metrics.jsonl: optimizer_steps", detail))
    charts: list[Chart | None] = [run_charts.reward_chart(run)] if run.metrics or run.evaluations else []
    if gain is not None:
        charts.append(run_charts.change_chart(gain))
    blocks: tuple[Block, ...] = (StatRow(tuple(stats)),) if stats else ()
    blocks += _grid(charts)
    if not blocks:
        blocks = (Prose("No batch and no evaluation is recorded yet.", "neutral"),)
    return Section("outcome", "Outcome", blocks)


def _before_after(source: Source, gain: Gain | None, context: ReportContext) -> Section | None:
    if gain is None or not context.config.gallery_conditions:
        return None
    gallery = heldout_gallery(source, gain, context)
    if gallery is None:
        return Section("gallery", "Before and after", (Prose("The videos of these evaluations were not kept."),))
    return Section("gallery", "Before and after", (gallery,))


def _labels(source: Source, run: RunData, context: ReportContext) -> list[Section]:
    """People's scores of this run's held-out videos."""
    mine = [labelled for labelled in context.labelled if is_of_run(labelled.key, source, run)]
    return [label_section(labelled, run.clusters, number) for number, labelled in enumerate(mine)]


def _by_class(source: Source, run: RunData, gain: Gain | None) -> Section | None:
    chart = run_charts.class_chart(run)
    training = run_charts.metric_chart(
        run,
        "training-classes",
        "Training reward by class",
        "score",
        [(name, ("reward_by_class", name)) for name in names_under(run.metrics, "reward_by_class")],
    )
    blocks = _grid([chart, training])
    if gain is not None:
        blocks += (_class_table(source, run, gain),)
    return Section("classes", "By class", blocks) if blocks else None


def _class_table(source: Source, run: RunData, gain: Gain) -> Table:
    groups = heldout_groups(source, gain.before)
    classes = {condition: group.record.mechanics_class for condition, group in groups.items()}
    rows: list[tuple[str | float | None, ...]] = []
    for name in sorted({*gain.before.by_class, *gain.after.by_class}):
        members = {c: d for c, d in gain.differences.items() if classes.get(c) == name}
        interval = bootstrap_conditions(members, run.clusters)
        before, after = gain.before.by_class.get(name), gain.after.by_class.get(name)
        moved = after - before if before is not None and after is not None else None
        low, high = (interval.low, interval.high) if interval is not None else (None, None)
        rows.append((name, len(members) or None, before, after, moved, low, high))
    columns = (
        Column("class"),
        Column("conditions", True),
        Column("before", True, 1),
        Column("after", True, 1),
        Column("change", True, 1, signed=True),
        Column("95 % low", True, 1),
        Column("95 % high", True, 1),
    )
    note = "Intervals by class are wide: few conditions each, and several are looked at together."
    source_text = "heldout.jsonl: by_class, scores; classes from the held-out groups"
    return Table("classes", "Held-out reward by class", columns, tuple(rows), source_text, note)


def _signal(run: RunData) -> Section:
    chart = run_charts.metric_chart
    charts: list[Chart | None] = [
        chart(
            run,
            "spread",
            "Spread of the scores",
            "points",
            [("within groups", ("std_within",)), ("whole batch", ("std_batch",))],
            "Groups whose candidates score alike teach nothing.",
            y_range=(0.0, 0.0),
        ),
        run_charts.histogram_chart(run),
        run_charts.share_chart(run),
        chart(
            run,
            "diversity",
            "Diversity within the group",
            "levels, 0 to 255",
            [("diversity", ("diversity",))],
            y_range=(0.0, 0.0),
        ),
        chart(
            run,
            "signal-cosine",
            "Agreement of the groups' gradients",
            "cosine between halves of the batch",
            [("gradient cosine", ("signal_cosine",))],
            "About 0: the groups pull in unrelated directions, the update is mostly noise.",
            thresholds=(Threshold(CLEAR_COSINE, f"clear from {compact(CLEAR_COSINE)}"),),
        ),
    ]
    return Section("signal", "Signal", _grid(charts), "Is there something to learn from in each batch?")


def _policy(run: RunData) -> Section:
    limit = finite(mapping_of(run.config, "monitors").get("velocity_ratio"))
    warn = (Threshold(limit, f"warning from {compact(limit)}"),) if limit is not None else ()
    chart = run_charts.metric_chart
    norms = [(name, ("grad_norm", name)) for name in names_under(run.metrics, "grad_norm")]
    updates = [(name, ("update_ratio", name)) for name in names_under(run.metrics, "update_ratio")]
    reference = [("live to reference", ("distance_live_reference",))]
    charts: list[Chart | None] = [
        chart(run, "distance-reference", "Distance to the reference", "Euclidean distance", reference,
              "How far training has taken the weights from where it began."),
        chart(run, "distance-old", "Distance to the old policy", "Euclidean distance",
              [("live to old", ("distance_live_old",))], "Before old, which samples the candidates, follows live."),
        chart(run, "velocity", "Velocity norm against the reference", "ratio",
              [("live / reference", ("velocity_ratio_reference",))],
              "1: velocities are as long as before training. Far above it pictures get harsh. Measured every few "
              "batches.", thresholds=warn),
        chart(run, "eta", "Weight of the old policy", "eta", [("eta", ("eta",))],
              "After a batch: old = eta times old + (1 - eta) times live.", y_range=(0.0, 0.0)),
        chart(run, "gradients", "Gradient norm by parameter group", "norm before clipping", norms),
        chart(run, "updates", "Update against weight, by parameter group", "ratio", updates,
              "Length of a step over the length of the weights."),
    ]  # fmt: skip
    return Section("policy", "Policy", _grid(charts, 3), "How far did the weights move, and how?")


def _loss(run: RunData) -> Section:
    absent = [name for name in LOSS_PARTS if not any(v is not None for v in column(run.metrics, "loss", name))]
    caption = f"Not computed in this run: {', '.join(absent)}." if absent and run.metrics else ""
    if "transition_real" in absent and run.config.get("mode") == "coupling":
        caption += " The cross-entropy of transitions has no gradient in mode coupling."
    if mapping_of(run.config, "loss").get("full_schedule") is False:
        caption += " One noise level is drawn per visit, a cost choice; the paper's appendix trains every one."
    caption += (
        " nft = pos + neg, pulled towards better and pushed from worse candidates; fm real and transition real hold on "
        "to real clips, and are computed every few steps."
    )
    parts = [(name.replace("_", " "), ("loss", name)) for name in LOSS_PARTS]
    thirds = [(f"{name} sigma", ("loss_by_sigma", name)) for name in ("low", "mid", "high")]
    chart = run_charts.metric_chart
    charts = [
        chart(run, "loss", "Parts of the loss", "mean over samples", parts, caption.strip()),
        chart(
            run,
            "loss-sigma",
            "Loss by third of sigma",
            "mean over samples",
            thirds,
            "sigma: share of noise, 1 is noise alone. Low sigma decides details, high sigma the scene.",
        ),
        chart(
            run,
            "mismatch",
            "Sampler against trainer",
            "velocity difference",
            [("mismatch", ("sampler_mismatch",))],
            "Same input through the sampler and the trainer; 0 is right, rounding is fine.",
        ),
    ]
    return Section("loss", "Loss", _grid(charts, 3))


def _picture(run: RunData) -> Section:
    charts = run_charts.picture_charts(run)
    frozen = [e for e in run.evaluations_of(run.policy) if e.frozen_display_share is not None]
    if frozen:
        charts.append(run_charts.frozen_chart(frozen))
    lead = "A frozen, over-exposed or washed-out video is the usual way to cheat a reward."
    tables = tuple(table for table in (drift_table(run), drift_by_horizon(run)) if table is not None)
    return Section("picture", "Picture", (*_grid(charts), *tables), lead)


def _alarms_by_batch(run: RunData) -> dict[int, tuple[str, ...]]:
    """Names of the alarms and warnings of each batch."""
    found: dict[int, tuple[str, ...]] = {}
    for alarm in run.alarms:
        batch, name = alarm.get("batch"), str(alarm.get("name"))
        if isinstance(batch, int) and name not in found.get(batch, ()):
            found[batch] = (*found.get(batch, ()), name)
    return found


def _groups(source: Source, run: RunData, gain: Gain | None, context: ReportContext) -> Section:
    sets = run_groups(source)
    left = context.embedded_groups - embedded_conditions(gain, context)
    cards = group_cards(sets, context.media, left, alarms=_alarms_by_batch(run))
    if not cards:
        return Section("groups", "Group browser", (Prose("No group is finished yet."),))
    inside = sum(1 for card in cards if any(video.media for video in card.videos))
    gallery = Gallery(
        "groups",
        "",
        cards,
        "group.json and scores.parquet of " + ", ".join(group_set.place for group_set in sets),
        filters=True,
        note=browser_note(len(cards), inside),
    )
    return Section("groups", "Group browser", (gallery,))


def _batch_table(run: RunData) -> Table:
    fields: tuple[tuple[Column, tuple[str, ...]], ...] = (
        (Column("batch", True, 0), ("batch",)),
        (Column("candidates", True, 0), ("candidates_seen",)),
        (Column("steps", True, 0), ("optimizer_steps",)),
        (Column("reward", True, 1), ("reward_mean",)),
        (Column("spread in groups", True, 1), ("std_within",)),
        (Column("tied", True, 0), ("groups_tied",)),
        (Column("gated", True, 0), ("groups_gated",)),
        (Column("failed", True, 0), ("groups_failed",)),
        (Column("distance to old", True), ("distance_live_old",)),
        (Column("to reference", True), ("distance_live_reference",)),
        (Column("loss", True), ("loss", "total")),
        (Column("eta", True), ("eta",)),
        (Column("skipped steps", True, 0), ("skipped_steps",)),
    )
    columns = [column(run.metrics, *path) for _, path in fields]
    rows = tuple(zip(*columns, strict=True))
    return Table("batches", "Batches", tuple(c for c, _ in fields), rows, "metrics.jsonl", shown=30)
