"""Values that betray a checkpoint: closed gates, non-finite numbers, zeros, a codebook that does not fit.

Gates and quantizer levels are a few bytes and are always read; LoRA factors too. Everything else is read with
`--scan` only. Files are mapped read-only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stateplay_rl.checks.audit.classify import is_lora
from stateplay_rl.checks.audit.coverage import Coverage, Placed
from stateplay_rl.checks.audit.expected import IMPLICIT_MODULES, TOKENIZER, TRANSFORMER, module_of
from stateplay_rl.checks.audit.headers import TensorFacts
from stateplay_rl.checks.audit.torch_files import load_tensors

Severity = Literal["failure", "warning", "note"]
Progress = Callable[[int, int], None]

LEVELS = "quantizer.levels"
LARGEST_LEVELS = 64
CHUNK_ELEMENTS = 1 << 24
SMALL_DTYPES = ("BF16", "F16", "F8_E4M3", "F8_E5M2")
_NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "<i1", "U8": "<u1", "BOOL": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8",
    "F8_E4M3": "<u1", "F8_E5M2": "<u1",
}  # fmt: skip
# Sign and exponent masks of floats that numpy reads as integers: (all but the sign, exponent of NaN and Inf).
_BITS = {"BF16": (0x7FFF, 0x7F80), "F8_E5M2": (0x7F, 0x7C), "F8_E4M3": (0x7F, 0x7F)}


@dataclass(frozen=True)
class Finding:
    """One fact about values. `failure` decides the verdict, `warning` and `note` do not."""

    severity: Severity
    check: str
    message: str


def findings(
    placed: Sequence[Placed], codes: int | None, *, scan: bool, progress: Progress | None = None
) -> tuple[Finding, ...]:
    """All health findings of the tensors that make the model.

    Args:
        placed: the tensors; of damaged files none.
        codes: number of transition codes that the predictor has, None when unknown.
        scan: read every tensor.
        progress: called with (bytes read, bytes in all) during a scan.
    """
    values = _Values()
    result = [*_gates(placed, values), *_codebook(placed, codes, values), *_dtypes(placed)]
    result += _lora_rows([p for p in placed if is_lora(p.facts.name)], values)
    if scan:
        result += _scan(placed, values, progress)
    return tuple(result)


def stored_levels(coverage: Coverage) -> tuple[int, ...]:
    """The quantizer levels in a sound tokenizer file; empty where no file holds them."""
    placed = coverage.chosen.get((TOKENIZER, LEVELS))
    if placed is None or not 0 < placed.facts.count <= LARGEST_LEVELS or len(placed.facts.shape) != 1:
        return ()
    try:
        return tuple(int(v) for v in _Values().raw(placed.facts))
    except (OSError, ValueError):  # a damaged file: its own finding says so
        return ()


def _gates(placed: Sequence[Placed], values: _Values) -> Iterator[Finding]:
    gates = [p for p in placed if p.name.endswith("latent_state_attention.gate") and p.facts.count == 1]
    if not gates:
        return
    numbers = {p.name: float(values.floats(p.facts).reshape(-1)[0]) for p in gates}
    closed = sorted(name for name, value in numbers.items() if value == 0)
    if len(closed) == len(gates):
        text = f"all {len(gates)} coupling gates are still 0: the state never reaches the picture"
        yield Finding("failure", "gates", text)
    elif closed:
        text = f"{len(closed)} of {len(gates)} coupling gates are 0 ({', '.join(closed[:3])})"
        yield Finding("warning", "gates", text)
    else:
        sizes = [abs(v) for v in numbers.values()]
        yield Finding("note", "gates", f"{len(gates)} coupling gates, |gate| {min(sizes):.3g} to {max(sizes):.3g}")


def _codebook(placed: Sequence[Placed], codes: int | None, values: _Values) -> Iterator[Finding]:
    levels = next((p for p in placed if p.component == TOKENIZER and p.name == LEVELS), None)
    if levels is None or levels.facts.count > LARGEST_LEVELS:
        return
    numbers = [int(v) for v in values.raw(levels.facts).reshape(-1)]
    product = int(np.prod(numbers, dtype=object)) if numbers else 0
    if codes is not None and product != codes:
        text = f"quantizer levels {numbers} make {product} codes, the predictor has {codes}"
        yield Finding("failure", "codebook", text)
    else:
        yield Finding("note", "codebook", f"quantizer levels {numbers}: {product} codes")


def _dtypes(placed: Sequence[Placed]) -> Iterator[Finding]:
    by_module: dict[str, Counter[str]] = defaultdict(Counter)
    for p in placed:
        by_module[module_of(p.component, p.name)][p.facts.dtype] += 1
    mixed = {
        module: counts
        for module, counts in by_module.items()
        if sum(dtype.startswith(("F", "BF")) for dtype in counts) > 1
    }
    for module, counts in mixed.items():
        text = f"{module} mixes dtypes: " + ", ".join(f"{n} {d}" for d, n in sorted(counts.items()))
        yield Finding("warning", "dtype_mix", text)
    small = [m for m in IMPLICIT_MODULES if any(dtype in SMALL_DTYPES for dtype in by_module.get(m, ()))]
    if small:
        text = f"stored in 16 bits or fewer, so small updates are lost in weights saved so: {', '.join(small)}"
        yield Finding("warning", "dtype", text)


def _lora_rows(factors: Sequence[Placed], values: _Values) -> Iterator[Finding]:
    """A factor saved from one shard of a sharded run has rows of zeros in place of the other shards."""
    bad: list[str] = []
    untrained = 0
    for p in factors:
        if len(p.facts.shape) != 2 or p.facts.count == 0:
            continue
        array = values.raw(p.facts) & _BITS[p.facts.dtype][0] if p.facts.dtype in _BITS else values.raw(p.facts)
        filled = int((array != 0).any(axis=1).sum())
        if filled == 0:
            untrained += 1
        elif filled < len(array):
            bad.append(f"{p.facts.name}: {filled} of {len(array)} rows non-zero ({filled / len(array):.1%})")
    if bad:
        text = f"{len(bad)} LoRA factors have rows of zeros, as in one shard of many: {'; '.join(bad[:3])}"
        yield Finding("failure", "lora_rows", text)
    if untrained:
        yield Finding("warning", "lora_zero", f"{untrained} LoRA factors are all zero: without effect")


def _scan(placed: Sequence[Placed], values: _Values, progress: Progress | None) -> Iterator[Finding]:
    total = sum(p.facts.end - p.facts.begin for p in placed)
    done = 0
    broken: list[str] = []
    zero: list[str] = []
    for p in placed:
        bad, nonzero = _count(values.raw(p.facts), p.facts.dtype)
        if bad:
            broken.append(f"{p.facts.name}: {bad} of {p.facts.count}")
        elif not nonzero and p.facts.count and len(p.facts.shape) > 1 and not is_lora(p.facts.name):
            zero.append(p.facts.name)
        done += p.facts.end - p.facts.begin
        if progress is not None:
            progress(done, total)
    if broken:
        yield Finding("failure", "non_finite", f"NaN or Inf in {len(broken)} tensors: {'; '.join(broken[:5])}")
    if zero:
        text = f"{len(zero)} matrices are all zero: {', '.join(zero[:5])}"
        yield Finding("failure" if any(_implicit(n, placed) for n in zero) else "warning", "all_zero", text)
    if not broken and not zero:
        yield Finding("note", "scan", f"{len(placed)} tensors read: all finite, no matrix all zero")


def _implicit(name: str, placed: Sequence[Placed]) -> bool:
    return any(
        p.facts.name == name and p.component == TRANSFORMER and module_of(p.component, p.name) in IMPLICIT_MODULES
        for p in placed
    )


def _count(array: np.ndarray, dtype: str) -> tuple[int, bool]:
    """Non-finite elements, and whether anything is not zero; in chunks, so that memory stays bounded."""
    flat = array.reshape(-1)
    bad, nonzero = 0, False
    for start in range(0, flat.size, CHUNK_ELEMENTS):
        chunk = flat[start : start + CHUNK_ELEMENTS]
        if dtype in _BITS:
            magnitude, exponent = _BITS[dtype]
            bad += int(((chunk & exponent) == exponent).sum())
            nonzero = nonzero or bool((chunk & magnitude).any())
        else:
            if chunk.dtype.kind == "f":
                bad += int((~np.isfinite(chunk)).sum())
            nonzero = nonzero or bool(chunk.any())
    return bad, nonzero


class _Values:
    """Tensor values of safetensors and torch files, mapped read-only."""

    def __init__(self) -> None:
        self._archives: dict[Path, Any] = {}

    def raw(self, facts: TensorFacts) -> np.ndarray:
        """The array; bf16 and 8-bit floats as their bits."""
        if facts.end:
            kind = np.dtype(_NUMPY[facts.dtype])
            if facts.count == 0:
                return np.zeros(facts.shape, kind)
            return np.memmap(facts.file, dtype=kind, mode="r", offset=facts.begin, shape=facts.shape or (1,))
        return self._from_archive(facts)

    def floats(self, facts: TensorFacts) -> np.ndarray:
        """The values of a small tensor as float64."""
        array = self.raw(facts)
        if facts.dtype == "BF16":
            return (np.array(array).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return np.array(array).astype(np.float64)

    def _from_archive(self, facts: TensorFacts) -> np.ndarray:
        import torch

        if facts.file not in self._archives:
            self._archives[facts.file] = load_tensors(facts.file)
        tensor = self._archives[facts.file][facts.name].detach()
        if facts.dtype in _BITS:
            bits = torch.int16 if facts.dtype == "BF16" else torch.uint8
            array: np.ndarray = tensor.contiguous().view(bits).numpy()
            return array.view(_NUMPY[facts.dtype])
        plain: np.ndarray = tensor.numpy()
        return plain
