"""What is logged about losses: sums over samples with their counts, added over calls and ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

PARTS = ("total", "nft", "pos", "neg", "fm_real", "transition_real", "reference")


@dataclass
class LossSums:
    """Sums over samples, float64, with their counts; added over calls and ranks.

    Values stay on their device until they are asked for: reading one waits for all work queued before it.
    """

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    sigma_sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    sigma_counts: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    _parts: list[tuple[str, Tensor]] = field(default_factory=list)
    _by_sigma: list[tuple[Sequence[int], Tensor]] = field(default_factory=list)

    def add(self, part: str, values_B: Tensor) -> None:
        """A part's losses of one call."""
        self._parts.append((part, values_B.detach().double().sum()))
        self.counts[part] += len(values_B)

    def add_by_sigma(self, thirds: Sequence[int], values_B: Tensor) -> None:
        """NFT losses by the third of the grid that each sample's sigma lies in."""
        self._by_sigma.append((thirds, values_B.detach().double()))

    def settle(self) -> None:
        """Read what is still on its device, in the order in which it was added."""
        for part, total in self._parts:
            self.sums[part] += float(total)
        for thirds, values_B in self._by_sigma:
            for third, value in zip(thirds, values_B.tolist(), strict=True):
                self.sigma_sums[third] += value
                self.sigma_counts[third] += 1
        self._parts.clear()
        self._by_sigma.clear()

    def pack(self) -> list[float]:
        """A flat list, for the sum over ranks."""
        self.settle()
        return [*self.sums.values(), *self.counts.values(), *self.sigma_sums, *self.sigma_counts]

    @classmethod
    def unpack(cls, values: Sequence[float]) -> LossSums:
        n = len(PARTS)
        return cls(
            dict(zip(PARTS, values[:n], strict=True)),
            dict(zip(PARTS, values[n : 2 * n], strict=True)),
            list(values[2 * n : 2 * n + 3]),
            list(values[2 * n + 3 :]),
        )

    def __iadd__(self, other: LossSums) -> LossSums:
        summed = LossSums.unpack([a + b for a, b in zip(self.pack(), other.pack(), strict=True)])
        self.__dict__.update(summed.__dict__)
        return self

    @property
    def is_finite(self) -> bool:
        """Whether every part was a number on every rank."""
        self.settle()
        return all(math.isfinite(value) for value in self.sums.values())

    def means(self) -> dict[str, float | None]:
        """Mean per part; None for a part that was not computed."""
        self.settle()
        return {p: self.sums[p] / self.counts[p] if self.counts[p] else None for p in PARTS}

    def by_sigma(self) -> dict[str, float | None]:
        """Mean NFT loss by third of the sampling grid."""
        self.settle()
        pairs = zip(("high", "mid", "low"), self.sigma_sums, self.sigma_counts, strict=True)
        return {name: total / count if count else None for name, total, count in pairs}
