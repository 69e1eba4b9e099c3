"""The page of a probe: is the judge any good? One number first, then noise, places, planted candidates, the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stateplay_rl.reporting.blocks import (
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
    Threshold,
)
from stateplay_rl.reporting.context import ReportContext
from stateplay_rl.reporting.json_files import Json, objects_of, read_object
from stateplay_rl.reporting.lineage import lineage_of
from stateplay_rl.reporting.numbers import compact, finite, mapping_of, mean, plural, points, share
from stateplay_rl.reporting.sources import LABELS, Source
from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import read_lines

SHOWINGS = "showings.jsonl"
PROBE = f"{layout.PROBE}:"
_PLANTED = (
    ("reference", "highest", "The real clip came out best"),
    ("frozen", "lowest", "A frozen video came out worst"),
)


def probe_page(source: Source, context: ReportContext) -> SourcePage:
    """The report on one probe.

    Raises:
        CorruptionError: `probe.json` or `showings.jsonl` is missing or damaged.
    """
    probe = read_object(source.path, layout.PROBE)
    sections = (
        Section("noise", "Signal and noise", _noise_blocks(probe)),
        Section("position", "Effect of the place", _position_blocks(probe)),
        Section("planted", "Planted candidates", _planted_blocks(probe)),
        Section("text", "Text about the opponent", _text_blocks(probe)),
        Section("showings", "Every kind of showing", (_showings_table(source),)),
    )
    extra = (("judge", str(probe.get("judge_id"))), ("judge protocol sha256", str(probe.get("protocol_sha256"))))
    return SourcePage(
        source.key,
        LABELS["probe"],
        source.name,
        _headline(probe),
        (),
        tuple(section for section in sections if section.blocks),
        lineage_of(source, context.out, extra, search=context.places),
    )


def _headline(probe: Json) -> Headline:
    good = probe.get("verdict") == "passed"
    verdict = "The judge tells candidates apart" if good else "The judge's noise hides the differences"
    return Headline(f"{verdict}: {probe.get('judge_id')}", "good" if good else "bad", tuple(_sentences(probe)))


def _sentences(probe: Json) -> Iterator[str]:
    """What a reader must know before the numbers: noise, places, planted videos."""
    signal, ratio = points(finite(probe.get("signal"))), finite(probe.get("signal_to_noise"))
    if probe.get("noise_free") is True:
        yield f"Asked again it gives the very same scores; candidates of a group differ by {signal} points."
    elif ratio is not None:
        yield f"Candidates of a group truly differ by {signal} points, {compact(ratio, digits=1)} times its noise."
    else:
        yield "Its noise could not be measured: too few answers."
    effects = [value for value, _, _ in map(_interval, objects_of(probe, "position")) if value is not None]
    if effects:
        largest = max(effects, key=abs)
        yield f"The place in the request moves a score by up to {compact(abs(largest), digits=1)} points."
    for name, key, words in _PLANTED:
        found = finite(mapping_of(mapping_of(probe, "planted"), name).get(key))
        if found is not None:
            yield f"{words} in {share(found)} of the groups."
    yield (
        f"{compact(finite(probe.get('showings')))} showings of "
        f"{plural(int(finite(probe.get('groups')) or 0), 'group')}: the fewer, the less this says."
    )


def _interval(value: object) -> tuple[float | None, float | None, float | None]:
    """Value and ends of an estimate; dashes when it could not be made."""
    if not isinstance(value, Mapping):
        return None, None, None
    return finite(value.get("value")), finite(value.get("low")), finite(value.get("high"))


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{compact(low, digits=1)}, {compact(high, digits=1)}]"


def _noise_blocks(probe: Json) -> tuple[Block, ...]:
    within, between = _interval(probe.get("within")), _interval(probe.get("between"))
    ratio = finite(probe.get("signal_to_noise"))
    good = probe.get("verdict") == "passed"
    free = probe.get("noise_free") is True
    stats = (
        Stat(
            "signal to noise",
            "no noise" if free else compact(ratio, digits=1),
            f"{PROBE} signal_to_noise",
            "true differences over the noise of one score",
            "good" if good else "bad",
        ),
        Stat("true differences, points", points(finite(probe.get("signal"))), f"{PROBE} signal"),
        Stat("noise within", points(within[0]), f"{PROBE} within", _between(*within[1:])),
        Stat("noise between", points(between[0]), f"{PROBE} between", _between(*between[1:])),
        Stat(
            "duplicate gap",
            points(finite(probe.get("duplicate_gap"))),
            f"{PROBE} duplicate_gap",
            f"noise alone: {points(finite(probe.get('duplicate_expected')))}",
        ),
        Stat(
            "showings",
            compact(finite(probe.get("showings"))),
            f"{PROBE} showings",
            f"of {plural(int(finite(probe.get('groups')) or 0), 'group')}, "
            f"{compact(finite(probe.get('missing')))} without an answer",
        ),
    )
    return (StatRow(stats),)


def _position_blocks(probe: Json) -> tuple[Block, ...]:
    estimates = [_interval(item) for item in objects_of(probe, "position")]
    if not estimates:
        return (Prose("The places' effect could not be measured: too few complete rotations.", "caution"),)
    x = tuple(float(place + 1) for place in range(len(estimates)))
    value, low, high = zip(*estimates, strict=True)
    chart: Chart = LineChart(
        "position",
        "Points that a place adds",
        "place in the request",
        "points",
        (Series("effect, 95 %", x, value, 0, low, high),),
        f"{PROBE} position",
        "A band that leaves 0: this place is favoured or punished, whatever stands there.",
        (Threshold(0.0, "no effect"),),
    )
    rows = tuple((f"place {n + 1}", *estimate) for n, estimate in enumerate(estimates))
    columns = (
        Column("place"),
        Column("effect, points", True, 2, signed=True),
        Column("95 % low", True, 2),
        Column("high", True, 2),
    )
    return (ChartGrid((chart,)), Table("position", "", columns, rows, f"{PROBE} position"))


def _planted_blocks(probe: Json) -> tuple[Block, ...]:
    planted = mapping_of(probe, "planted")
    rows = tuple(
        (
            name.replace("_", " "),
            finite(row.get("groups")),
            finite(row.get("score")),
            finite(row.get("rank")),
            _percent(row.get("lowest")),
            _percent(row.get("highest")),
        )
        for name, row in planted.items()
        if isinstance(row, Mapping)
    )
    if not rows:
        return ()
    columns = (
        Column("planted"),
        Column("groups", True),
        Column("mean score", True, 1),
        Column("mean rank", True, 2),
        Column("% lowest", True, 0),
        Column("% highest", True, 0),
    )
    note = "Rank 1 is the best. The real clip should rank high; frozen, backward and foreign videos should rank last."
    return (Table("planted", "", columns, rows, f"{PROBE} planted", note),)


def _percent(value: object) -> float | None:
    number = finite(value)
    return None if number is None else 100 * number


def _text_blocks(probe: Json) -> tuple[Block, ...]:
    shift, changed = finite(probe.get("prompt_shift")), finite(probe.get("prompt_reordered"))
    if shift is None and changed is None:
        return (Prose("Not asked: this judge does not read the text, or the probe left it out."),)
    stats = (
        Stat("mean shift, points", compact(shift, digits=1, signed=True), f"{PROBE} prompt_shift"),
        Stat("pairs that change order", share(changed), f"{PROBE} prompt_reordered"),
    )
    note = "Hidden where the protocol shows it, and the other way round. A real clip's text tells what happened in it."
    return (StatRow(stats), Prose(note))


def _showings_table(source: Source) -> Table:
    kinds: dict[str, list[Sequence[float] | None]] = {}
    for line in read_lines(source.path / SHOWINGS):
        kinds.setdefault(str(line.get("kind")), []).append(line.get("scores"))
    rows = []
    for kind, answers in kinds.items():
        given = [answer for answer in answers if answer is not None]
        places = max((len(answer) for answer in given), default=0)
        means = ", ".join(points(mean([a[k] for a in given if k < len(a)])) for k in range(places))
        rows.append((kind.replace("_", " "), len(answers), len(answers) - len(given), means))
    columns = (Column("kind"), Column("showings", True), Column("no answer", True), Column("mean score by place"))
    return Table("showings", "", columns, tuple(rows), SHOWINGS)
