"""A source for every parameter and buffer of the assembled model: the rows of `provenance.parquet`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from stateplay_rl.checks.audit.coverage import Coverage
from stateplay_rl.checks.audit.expected import TOKENIZER, VAE, ExpectedTensor
from stateplay_rl.worlds.native.architecture import Architecture, Statement

Origin = Literal["base", "tokenizer", "sft", "lora", "assumed", "initialised"]

COLUMNS = {
    "component": "str",
    "name": "str",
    "kind": "str",
    "shape": "int[]",
    "dtype": "str?",
    "source": "str",
    "source_file": "str?",
    "source_name": "str?",
    "source_sha256": "str?",
    "note": "str",
}

# Buffers whose values the preset states; everything else that no file holds would be random.
_PUBLISHED = {("stateplay-5b", VAE, name) for name in ("latents_mean", "latents_std")}
_STATED = {(TOKENIZER, "quantizer.levels"), (TOKENIZER, "quantizer.basis")}


@dataclass(frozen=True)
class ProvenanceRow:
    """Where one parameter or buffer comes from.

    Args:
        shape: as found, else as expected (-1 where only the file knows).
        dtype: as found; None when no file holds it.
        source: `initialised` means that nothing gives it a value: it would be left at random.
        source_file, source_name: file and the name in it; None for values that no file holds.
    """

    component: str
    name: str
    kind: Literal["parameter", "buffer"]
    shape: tuple[int, ...]
    dtype: str | None
    source: Origin
    source_file: Path | None
    source_name: str | None
    note: str

    def table_row(self, sha256: Mapping[Path, str]) -> dict[str, object]:
        """As stored; `sha256` holds the hashes of those files that were hashed."""
        return {
            "component": self.component,
            "name": self.name,
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "source": self.source,
            "source_file": None if self.source_file is None else self.source_file.name,
            "source_name": self.source_name,
            "source_sha256": None if self.source_file is None else sha256.get(self.source_file),
            "note": self.note,
        }


def provenance(
    expected: Sequence[ExpectedTensor],
    coverage: Coverage,
    preset_name: str,
    architecture: Architecture | None = None,
    *,
    computed_buffers: bool = False,
) -> tuple[ProvenanceRow, ...]:
    """One row for every expected tensor, in the model's order.

    Args:
        computed_buffers: the model is a checkout's, whose constructors compute every buffer that no file holds.
    """
    misfits = frozenset((tensor.component, tensor.name) for tensor, _ in coverage.wrong_shape)
    stated = architecture.stated.get("fsq_levels") if architecture else None
    rows = (_row(tensor, coverage, misfits, preset_name, stated) for tensor in expected)
    return tuple(_computed(row) if computed_buffers else row for row in rows)


def _computed(row: ProvenanceRow) -> ProvenanceRow:
    if row.kind != "buffer" or row.source_file is not None:
        return row
    return replace(row, source="base", note="no file holds it; the checkout's constructor computes it")


def _row(
    tensor: ExpectedTensor,
    coverage: Coverage,
    misfits: frozenset[tuple[str, str]],
    preset_name: str,
    levels: Statement | None,
) -> ProvenanceRow:
    key = (tensor.component, tensor.name)
    kind: Literal["parameter", "buffer"] = "buffer" if tensor.buffer else "parameter"
    placed = coverage.chosen.get(key)
    if placed is None:
        source, note = _without_file(tensor, preset_name, levels)
        return ProvenanceRow(tensor.component, tensor.name, kind, tensor.shape, None, source, None, None, note)
    note = ""
    if key in misfits:
        note = f"wrong shape: the model needs {list(tensor.shape)}"
    return ProvenanceRow(
        tensor.component,
        tensor.name,
        kind,
        placed.facts.shape,
        placed.facts.dtype,
        placed.role,
        placed.facts.file,
        placed.facts.name,
        note,
    )


def _without_file(tensor: ExpectedTensor, preset_name: str, levels: Statement | None) -> tuple[Origin, str]:
    if (preset_name, tensor.component, tensor.name) in _PUBLISHED:
        return "base", "published statistics of this VAE, kept in the package"
    if (tensor.component, tensor.name) in _STATED and levels is not None:
        return "tokenizer", f"no file holds it; quantizer levels as stated by {levels.source}"
    if (tensor.component, tensor.name) in _STATED:
        return "assumed", "no file holds it; the preset's quantizer levels"
    return "initialised", "no file holds it: it would be left at random initialisation"


def source_counts(rows: Sequence[ProvenanceRow]) -> dict[str, int]:
    """Number of parameters and buffers by source."""
    return dict(sorted(Counter(row.source for row in rows).items()))
