"""Results of a study, read back from its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from study_statistics import Curves, stacked

GPU_PARTS = ("sample", "decode", "train")
"""Parts of a batch that are GPU time; judging is done by the CPU."""
TIMED_AS = {
    "sft_mixture": "sft_true",
    "nft_real_default": "nft_joint",
    "nft_joint_higher": "nft_joint",
    "flow_grpo_no_anchor": "flow_grpo",
    "rejection_no_anchor": "rejection",
}
"""Methods that were not timed and do the same work as another; all others count as `nft`."""


@dataclass(frozen=True)
class Study:
    """All results that are there, by name of the arm."""

    results: Mapping[str, dict[str, Any]]
    tuning: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Study:
        """Raises SystemExit where there is no result."""
        results = {path.stem: json.loads(path.read_text()) for path in sorted((folder / "arms").glob("*.json"))}
        if not results:
            raise SystemExit(f"{folder / 'arms'} holds no results: run run_study.py --out {folder} first")
        tuning = folder / "tuning.json"
        return cls(results, json.loads(tuning.read_text()) if tuning.is_file() else {})

    def of(self, purpose: str) -> list[dict[str, Any]]:
        """Results of a purpose."""
        return [r for r in self.results.values() if r["purpose"] == purpose]

    def methods(self) -> list[str]:
        """Methods of the reported arms that train, in the order of their names."""
        return sorted({r["method"] for r in self.of("main") if r["method"] != "base"})

    def seeds(self, method: str) -> list[dict[str, Any]]:
        """A method's reported arms, by seed."""
        return sorted((r for r in self.of("main") if r["method"] == method), key=lambda r: int(r["seed"]))

    def curves(self, method: str) -> Curves:
        """A method's curves over its seeds."""
        return stacked([r["curve"] for r in self.seeds(method)])

    def paired_gains(self, one: str, two: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Gains [S, N] of two methods over the seeds that both have, at the common budget; None without any."""
        rows = [{r["seed"]: r["curve"] for r in self.seeds(method)} for method in (one, two)]
        common = sorted(set(rows[0]) & set(rows[1]))
        if not common:
            return None
        first, second = (stacked([row[seed] for seed in common]).gains(self.budget) for row in rows)
        return first, second

    @property
    def budget(self) -> int:
        """Candidates of the shortest reported arm: where methods are compared."""
        return min(int(r["curve"][-1]["candidates"]) for r in self.of("main") if r["method"] != "base")

    def seconds_per_batch(self) -> dict[str, dict[str, float]]:
        """Seconds by part of the timed methods, the first batch (kernels are chosen) left out."""
        table = {}
        for result in self.of("time"):
            rows = result["seconds"][1:]
            parts = {name for row in rows for name in row}
            table[result["method"]] = {p: float(np.mean([row.get(p, 0.0) for row in rows])) for p in sorted(parts)}
        return table

    def gpu_seconds(self, method: str) -> float | None:
        """GPU seconds per candidate of a method; None where it was not timed."""
        table = self.seconds_per_batch()
        parts = table.get(method) or table.get(TIMED_AS.get(method, "nft"))
        if parts is None:
            return None
        return sum(parts.get(p, 0.0) for p in GPU_PARTS) / int(self.seeds(method)[0]["candidates_per_batch"])
