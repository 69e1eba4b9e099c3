"""The page of a `reward_model/` directory: the gate first, then agreement beside its baselines, ablations, calibration.

Its formats: `docs/directories.md`, section `reward_model/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateplay_rl.reporting.blocks import (
    BarChart,
    BarSeries,
    Block,
    Chart,
    ChartGrid,
    Column,
    Headline,
    LineChart,
    Prose,
    Section,
    Series,
    SourcePage,
    Stat,
    StatRow,
    Table,
)
from stateplay_rl.reporting.context import ReportContext
from stateplay_rl.reporting.json_files import Json, objects_of, read_object
from stateplay_rl.reporting.lineage import lineage_of
from stateplay_rl.reporting.numbers import compact, finite, mapping_of, plural, points, share
from stateplay_rl.reporting.sources import LABELS, Source
from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import read_lines

TRAINING_LOG = "train.jsonl"
ABLATIONS = ("reference_hidden", "actions_hidden", "untrained")
EVALUATION = f"{layout.EVALUATION}:"


def student_page(source: Source, context: ReportContext) -> SourcePage:
    """The report on a student judge.

    Raises:
        CorruptionError: `evaluation.json` or `gate.json` is missing or damaged.
    """
    evaluation = read_object(source.path, layout.EVALUATION)
    gate = read_object(source.path, layout.GATE)
    sections = (
        Section("gate", "Gate", _gate_blocks(gate), "What stage C asks before it starts."),
        Section("agreement", "Agreement with the judge", _agreement_blocks(evaluation, gate)),
        Section("ablations", "Ablations and baselines", _baseline_blocks(evaluation)),
        Section("calibration", "Calibration", _calibration_blocks(evaluation)),
        Section("classes", "By class and position", _class_blocks(evaluation)),
        Section("training", "Training", _training_blocks(source, evaluation)),
    )
    extra = (
        ("adapter sha256", str(gate.get("adapter_sha256"))),
        ("data sha256", str(mapping_of(gate, "data").get("sha256"))),
        ("judge protocol sha256", str(gate.get("judge_protocol_sha256"))),
        ("learnt from judge", str(evaluation.get("judge_id"))),
    )
    return SourcePage(
        source.key,
        LABELS["reward_model"],
        source.name,
        _headline(gate, evaluation),
        (),
        tuple(section for section in sections if section.blocks),
        lineage_of(source, context.out, extra, search=context.places),
    )


def _headline(gate: Json, evaluation: Json) -> Headline:
    student = mapping_of(evaluation, "student")
    agreement, ends = finite(student.get("pairwise_agreement")), student.get("pairwise_agreement_interval")
    interval = f" [{share(finite(ends[0]))}, {share(finite(ends[1]))}]" if isinstance(ends, list) else ""
    failed = [check for check in objects_of(gate, "checks") if not check.get("passed")]
    groups = plural(int(finite(student.get("groups")) or 0), "test group")
    clusters = plural(int(finite(evaluation.get("clusters")) or 0), "cluster")
    sentences = [
        f"On {groups} of {clusters} that it never saw, it orders "
        f"{share(agreement)}{interval} of the pairs as {evaluation.get('judge_id')} does.",
    ]
    if failed:
        names = ", ".join(str(check.get("name")).replace("_", " ") for check in failed)
        sentences.append(f"Not met: {names}.")
    sentences.append(f"Next: {gate.get('advice')}.")
    passed = gate.get("passed") is True
    return Headline("Gate passed" if passed else "Gate not passed", "good" if passed else "bad", tuple(sentences))


def _gate_blocks(gate: Json) -> tuple[Block, ...]:
    groups = mapping_of(mapping_of(gate, "data"), "groups")
    stats = StatRow(
        (
            Stat("the software ran", "yes" if gate.get("ran") is True else "no", f"{layout.GATE}: ran"),
            Stat(
                "good enough",
                "yes" if gate.get("passed") is True else "no",
                f"{layout.GATE}: passed",
                tone="good" if gate.get("passed") is True else "bad",
            ),
            *(
                Stat(f"{name} groups", compact(finite(groups.get(name))), f"{layout.GATE}: data.groups.{name}")
                for name in ("train", "validation", "test")
            ),
        )
    )
    rows = tuple(
        (
            str(check.get("name")).replace("_", " "),
            finite(check.get("value")),
            str(check.get("rule")),
            finite(check.get("threshold")),
            "passed" if check.get("passed") else "not passed",
        )
        for check in objects_of(gate, "checks")
    )
    columns = (
        Column("check"),
        Column("value", True, 3),
        Column("must be"),
        Column("threshold", True, 3),
        Column("outcome"),
    )
    blocks: list[Block] = [stats, Table("gate", "Every check", columns, rows, f"{layout.GATE}: checks")]
    missing = gate.get("not_measurable")
    if isinstance(missing, list) and missing:
        blocks.append(Prose(f"Not measurable: {', '.join(map(str, missing))}.", "caution"))
    return tuple(blocks)


def _agreement_blocks(evaluation: Json, gate: Json) -> tuple[Block, ...]:
    student = mapping_of(evaluation, "student")
    names = (
        ("pairs ordered alike", "pairwise_agreement", share),
        ("same best", "top_agreement", share),
        ("same worst", "bottom_agreement", share),
        ("Spearman", "spearman", lambda value: compact(value, digits=2)),
        ("mean error, points", "mae_points", points),
        ("calibration error, points", "calibration_error_points", points),
        ("answers that do not parse", "parse_failures", compact),
    )
    stats = tuple(
        Stat(label, text(finite(student.get(key))), f"{EVALUATION} student.{key}") for label, key, text in names
    )
    return (StatRow(stats), ChartGrid((_agreement_chart(evaluation, gate),)))


BAR_NAMES = {
    "position_only": "place",
    "class_only": "class",
    "reference_hidden": "no clip",
    "actions_hidden": "no keys",
}
"""Short enough to stand below a bar; the table below the chart has the full names."""


def _agreement_chart(evaluation: Json, gate: Json) -> Chart:
    """The student and everything that it must beat, with their intervals, on one axis."""
    compared = {"student": mapping_of(evaluation, "student"), **mapping_of(evaluation, "baselines")}
    rows = {name: row for name, row in compared.items() if isinstance(row, Mapping)}
    needed = finite(mapping_of(gate, "thresholds").get("pairwise_agreement"))
    series = BarSeries("pairwise agreement", tuple(finite(r.get("pairwise_agreement")) for r in rows.values()), 0)
    caption = (
        "Place, class: a guess from nothing else. No clip, no keys: the reference or the buttons are hidden; one that "
        "agrees as well as the student exposes a shortcut. Untrained: its base."
    )
    if needed is not None:
        caption = f"The gate asks for {compact(needed, digits=2)}. {caption}"
    return BarChart(
        "agreement",
        "Pairs ordered as the judge orders them",
        "who answers",
        "share of pairs, 0 to 1",
        tuple(BAR_NAMES.get(name, name) for name in rows),
        (series,),
        f"{EVALUATION} student, baselines",
        caption,
    )


_MEASURES = (
    ("groups", Column("groups", True)),
    ("pairwise_agreement", Column("pairs alike", True, 3)),
    ("top_agreement", Column("same best", True, 3)),
    ("bottom_agreement", Column("same worst", True, 3)),
    ("spearman", Column("Spearman", True, 3)),
    ("mae_points", Column("error, points", True, 1)),
    ("parse_failures", Column("not parsed", True)),
)


def _measured(row: Json) -> tuple[float | None, ...]:
    return tuple(finite(row.get(key)) for key, _ in _MEASURES)


def _baseline_blocks(evaluation: Json) -> tuple[Block, ...]:
    compared: dict[str, Any] = {"student": evaluation.get("student"), **mapping_of(evaluation, "baselines")}
    rows = []
    for name, row in compared.items():
        if isinstance(row, Mapping):
            ends = row.get("pairwise_agreement_interval")
            low, high = (finite(ends[0]), finite(ends[1])) if isinstance(ends, list) else (None, None)
            kind = "student" if name == "student" else "ablation" if name in ABLATIONS else "baseline"
            rows.append((name.replace("_", " "), kind, *_measured(row), low, high))
    columns = (
        Column("who answers"),
        Column("kind"),
        *(column for _, column in _MEASURES),
        Column("pairs, 95 % low", True, 3),
        Column("high", True, 3),
    )
    note = "Baselines see no picture. Ablations ask the student with something hidden; untrained is its base model."
    return (Table("baselines", "", columns, tuple(rows), f"{EVALUATION} student, baselines", note),)


def _calibration_blocks(evaluation: Json) -> tuple[Block, ...]:
    rows = objects_of(evaluation, "calibration")
    if not rows:
        return (Prose("No answer of the test split parsed: there is nothing to calibrate.", "caution"),)
    student = tuple(finite(row.get("student_mean")) or 0.0 for row in rows)
    judge = tuple(finite(row.get("judge_mean")) for row in rows)
    exact = Series("equal", (0.0, 100.0), (0.0, 100.0), 5, dashed=True)
    chart = LineChart(
        "calibration",
        "The judge's mean over the student's",
        "student's mean score in the bin",
        "judge's mean score",
        (Series("test split", student, judge, 0), exact),
        f"{EVALUATION} calibration",
        "Above the dashed line the student is too strict, below it too generous.",
        y_range=(0.0, 100.0),
    )
    counts = BarChart(
        "calibration-counts",
        "Scores in each bin",
        "student's score, lower end of the bin",
        "scores",
        tuple(compact(finite(row.get("low"))) for row in rows),
        (BarSeries("scores", tuple(finite(row.get("count")) for row in rows), 0),),
        f"{EVALUATION} calibration",
    )
    return (ChartGrid((chart, counts)),)


def _class_blocks(evaluation: Json) -> tuple[Block, ...]:
    classes = mapping_of(evaluation, "by_class").items()
    by_class = tuple((name, *_measured(row)) for name, row in classes if isinstance(row, Mapping))
    columns = (Column("class"), *(column for _, column in _MEASURES))
    place = tuple(
        (
            f"place {int(row.get('position', 0)) + 1}",
            finite(row.get("judge_mean")),
            finite(row.get("student_mean")),
            finite(row.get("mae_points")),
            finite(row.get("pairwise_agreement")),
        )
        for row in objects_of(evaluation, "by_position")
    )
    place_columns = (
        Column("place in the request"),
        Column("judge's mean", True, 1),
        Column("student's mean", True, 1),
        Column("error, points", True, 1),
        Column("pairs alike", True, 3),
    )
    note = "A student that learnt places instead of pictures differs between them."
    return (
        Table("classes", "By class", columns, by_class, f"{EVALUATION} by_class"),
        Table("positions", "By place", place_columns, place, f"{EVALUATION} by_position", note),
    )


def _training_blocks(source: Source, evaluation: Json) -> tuple[Block, ...]:
    facts = (
        Stat("reading", str(evaluation.get("reading")), f"{EVALUATION} reading, chosen on validation"),
        Stat("best epoch", compact(finite(evaluation.get("best_epoch"))), f"{EVALUATION} best_epoch"),
    )
    log = source.path / TRAINING_LOG
    if not log.is_file():
        return (StatRow(facts),)
    lines = tuple(read_lines(log))
    steps = [line for line in lines if "step" in line]
    epochs = [line for line in lines if "validation_loss" in line]
    per_epoch = len(steps) / max((int(line.get("epoch", 1)) for line in steps), default=1)
    train = Series(
        "train", tuple(float(line["step"]) for line in steps), tuple(finite(line.get("loss")) for line in steps), 0
    )
    validation = Series(
        "validation",
        tuple(per_epoch * int(line["epoch"]) for line in epochs),
        tuple(finite(line.get("validation_loss")) for line in epochs),
        1,
    )
    chart = LineChart(
        "loss", "Loss", "step", "cross-entropy on the answer", (train, validation), f"{TRAINING_LOG}: loss", ""
    )
    return (StatRow(facts), ChartGrid((chart,)))
