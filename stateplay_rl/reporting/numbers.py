"""Numbers as a reader should see them: sensible digits, a true minus, a dash for a missing value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

MISSING = "–"
MINUS = "\u2212"


def finite(value: object) -> float | None:
    """`value` as a float, or None if it is missing or not finite (JSON null, or a hand-written NaN)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def mapping_of(record: Mapping[str, object], key: str) -> Mapping[str, object]:
    """The object under `key`, or an empty one when it is null or absent."""
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def compact(value: float | None, *, digits: int | None = None, signed: bool = False) -> str:
    """`value` with `digits` decimals, or with three significant digits when `digits` is None."""
    if value is None:
        return MISSING
    if digits is not None:
        text = f"{value:,.{digits}f}"
    elif value == 0:
        text = "0"
    elif float(value).is_integer() and abs(value) < 1e7:
        text = f"{value:,.0f}"
    elif abs(value) < 1e-3 or abs(value) >= 1e7:
        text = compact_power(value, 2)
    else:
        text = f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
    if text.startswith("-") and not any(digit in text for digit in "123456789"):
        text = text[1:]
    if signed and not text.startswith("-"):
        text = f"+{text}"
    return text.replace("-", MINUS)


def compact_power(value: float, digits: int) -> str:
    """``4.4e−4``: a very small or large number with `digits` decimals."""
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", MINUS)


def points(value: float | None) -> str:
    """A score of 0..100 with one decimal."""
    return compact(value, digits=1)


def change(value: float | None, interval: Sequence[float | None] | None = None) -> str:
    """A signed difference of scores with its interval: ``+26.3 [22.0, 30.5]``."""
    text = compact(value, digits=1, signed=True)
    if interval is None or any(end is None for end in interval):
        return text
    return f"{text} [{compact(interval[0], digits=1)}, {compact(interval[1], digits=1)}]"


def share(value: float | None) -> str:
    """A share of 0..1 in per cent."""
    return MISSING if value is None else f"{compact(100 * value, digits=0 if value in (0, 1) else 1)} %"


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are there, None if there are none."""
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None


def deviation(values: Sequence[float]) -> float | None:
    """Population standard deviation, None for fewer than two values."""
    if len(values) < 2:
        return None
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / len(values))


def histogram(values: Sequence[float], edges: Sequence[float]) -> tuple[int, ...]:
    """Counts per bin; the last bin includes its right edge."""
    counts, _ = np.histogram(np.asarray(values, dtype=np.float64), bins=np.asarray(edges, dtype=np.float64))
    return tuple(int(count) for count in counts)


def plural(count: int, noun: str, many: str | None = None) -> str:
    """``1 batch``, ``2 batches`` (`many` gives an irregular plural)."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def short_hash(text: str | None) -> str:
    """The first 12 characters of a hash, a dash when there is none."""
    return text[:12] if text else MISSING


def tick_labels(values: Sequence[float]) -> tuple[str, ...]:
    """Labels of equally spaced ticks, all with as many decimals as their step needs."""
    step = abs(values[1] - values[0]) if len(values) > 1 else 0.0
    largest = max(abs(value) for value in values)
    if largest >= 1e7 or 0 < largest < 1e-3:
        return tuple("0" if value == 0 else compact_power(value, 1) for value in values)
    if step == 0:
        return tuple(compact(value) for value in values)
    digits = max(0, -math.floor(math.log10(step)))
    if round(step * 10**digits, 6) % 1:  # a step of 2.5 units needs one decimal more
        digits += 1
    return tuple(compact(value, digits=digits) for value in values)


def ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """Round tick positions that enclose [low, high], about `count` of them."""
    if low == high == 0:
        high = 1.0
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        pad = abs(low) * 0.1 or 0.5
        low, high = low - pad, high + pad
    raw = (high - low) / max(count - 1, 1)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(float(f"{index * step:.12g}") for index in range(first, last + 1))
