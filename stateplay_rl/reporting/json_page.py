"""Pages of directories whose result is one JSON file: audits, verifications, and any other kind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stateplay_rl.reporting.blocks import Block, Column, Headline, Prose, Section, SourcePage, Table, Tone
from stateplay_rl.reporting.context import ReportContext
from stateplay_rl.reporting.json_files import read_object
from stateplay_rl.reporting.lineage import lineage_of
from stateplay_rl.reporting.numbers import plural
from stateplay_rl.reporting.sources import LABELS, Source
from stateplay_rl.stores import layout

RESULT_FILES = {
    "audit": layout.AUDIT,
    "verify": layout.VERIFY,
    "preview": layout.DRY_RUN,
}
VERDICT_KEYS = ("verdict", "status", "passed", "ok")
PARTS_FIRST = ("reasons", "lines", "coverage", "health", "sources", "files", "architecture")
GOOD_WORDS = ("passed", "pass", "ok", "true", "complete")
BAD_WORDS = ("failed", "fail", "false", "refused")


def json_page(source: Source, context: ReportContext) -> SourcePage:
    """Verdict first, then every part of the result as a table.

    Raises:
        CorruptionError: the result file is missing or is no JSON object.
    """
    name = RESULT_FILES.get(source.schema)
    result = read_object(source.path, name) if name is not None else {}
    verdict, tone = _verdict(result)
    files = len(source.manifest.files) if source.manifest is not None else 0
    title = verdict or LABELS.get(source.schema, source.schema).capitalize()
    sentences = [
        *_sentences(result),
        f"Sealed directory of kind {source.schema} with {plural(files, 'file')}.",
    ]
    if name is None:
        sentences.append("This kind has no page of its own yet: its lineage and files are shown.")
    sections = []
    plain = {key: value for key, value in result.items() if not isinstance(value, Mapping | list)}
    if plain:
        sections.append(Section("facts", "Facts", (_pairs("facts", plain, name or ""),)))
    for key, value in sorted(result.items(), key=lambda item: _rank(item[0])):
        if isinstance(value, Mapping | list) and value:
            blocks = _blocks(key, value, f"{name}: {key}")
            sections.append(Section(f"part-{key}".lower(), key.replace("_", " ").capitalize(), blocks))
    return SourcePage(
        source.key,
        LABELS.get(source.schema, source.schema),
        source.name,
        Headline(title, tone, tuple(sentences)),
        (),
        tuple(sections),
        lineage_of(source, context.out, search=context.places),
    )


def _rank(key: str) -> int:
    """What a reader looks for first: coverage, health, checks; the rest in the order of the file."""
    return PARTS_FIRST.index(key) if key in PARTS_FIRST else len(PARTS_FIRST)


def _verdict(result: Mapping[str, Any]) -> tuple[str, Tone]:
    for key in VERDICT_KEYS:
        if key in result and isinstance(result[key], str | bool):
            word = str(result[key]).lower()
            tone: Tone = "good" if word in GOOD_WORDS else "bad" if word in BAD_WORDS else "caution"
            text = {"true": "Passed", "false": "Failed"}.get(word, str(result[key]).replace("_", " ").capitalize())
            return text, tone
    return "", "neutral"


def _sentences(result: Mapping[str, Any]) -> list[str]:
    """Reasons and summaries that the result states in words."""
    found: list[str] = []
    for key in ("summary", "message", "reason", "reasons", "problems", "expect", "in_words"):
        value = result.get(key)
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            found += [item for item in value if isinstance(item, str)]
    return found


def _blocks(key: str, value: Mapping[str, Any] | Sequence[Any], source: str) -> tuple[Block, ...]:
    rows = list(value.items()) if isinstance(value, Mapping) else []
    if rows and all(isinstance(row, Mapping) for _, row in rows):
        return (_records(key, [{"name": name, **row} for name, row in rows], source),)
    if isinstance(value, Mapping):
        return (_pairs(key, value, source),)
    if all(isinstance(row, Mapping) for row in value):
        return (_records(key, list(value), source),)
    return tuple(Prose(_text(item)) for item in value)


def _pairs(key: str, values: Mapping[str, Any], source: str) -> Table:
    rows = tuple((name.replace("_", " "), _cell(value)) for name, value in values.items())
    return Table(key, "", (Column("fact"), Column("value")), rows, source, shown=80)


def _records(key: str, records: Sequence[Mapping[str, Any]], source: str) -> Table:
    names = list(dict.fromkeys(name for record in records for name in record))
    numeric = {
        name: all(isinstance(r.get(name), int | float | None) and not isinstance(r.get(name), bool) for r in records)
        for name in names
    }
    columns = tuple(Column(name.replace("_", " "), numeric[name]) for name in names)
    rows = tuple(tuple(_cell(record.get(name)) for name in names) for record in records)
    return Table(key, "", columns, rows, source, shown=80)


def _cell(value: Any) -> str | float | int | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
