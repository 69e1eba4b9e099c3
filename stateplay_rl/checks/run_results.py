"""What of a training run must not depend on kills, resumes, or the number of processes; hashed, part by part.

Times, alarms about times, and the number of ranks are left out: they may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.stores.segments import list_segments

LOGS = (layout.METRICS, layout.HELDOUT)
SEGMENT_LOGS = (layout.VERDICTS, layout.AUDITS, layout.REFEREE)


def run_results(run: Path) -> dict[str, str]:
    """Hashes of a sealed run's results: policies, ledger, metrics, held-out lines, verdicts, groups.

    Raises:
        UnsealedError, CorruptionError: the run is unfinished or damaged.
    """
    manifest = read_manifest(run, schema="run", verify_files=True)
    with Ledger.open(run / layout.LEDGER, read_only=True) as ledger:
        found = {"ledger": ledger.digest()}
    found |= {f"policy {name}": sha256 for name, sha256 in manifest.extra["policies"].items()}
    found |= {name: sha256_file(run / name) for name in LOGS if (run / name).is_file()}
    for segment in list_segments(run):
        for name in SEGMENT_LOGS:
            if (segment.path / name).is_file():
                found[f"{segment.path.name}/{name}"] = sha256_file(segment.path / name)
        for group_id in segment.groups.finished():
            found[f"{segment.path.name}/{group_id}"] = sha256_file(segment.groups.folder(group_id) / layout.GROUP)
    return found


def differences(left: Mapping[str, str], right: Mapping[str, str]) -> list[str]:
    """Names of the results that differ or are there on one side only."""
    return [name for name in sorted({*left, *right}) if left.get(name) != right.get(name)]


def largest_weight_difference(left: Path, right: Path, policy: str = "live") -> float:
    """Largest absolute difference of two runs' exported weights.

    Args:
        left, right: sealed runs of the same world and mode.
        policy: `live`, `old` or `average`.
    """
    first, second = (_exported(run, policy) for run in (left, right))
    if first.keys() != second.keys():
        return float("inf")
    return max((float((value - second[name]).abs().max()) for name, value in first.items()), default=0.0)


def consumed(run: Path) -> list[tuple[str, ...]]:
    """Conditions of every batch, in order."""
    with Ledger.open(run / layout.LEDGER, read_only=True) as ledger:
        return [tuple(entry.condition_id for entry in ledger.members(batch)) for batch in range(ledger.batches())]


def _exported(run: Path, policy: str) -> dict[str, torch.Tensor]:
    sha256 = read_manifest(run, schema="run").extra["policies"][policy]
    tensors: dict[str, torch.Tensor] = load_file(run / layout.policy_file(sha256))
    return tensors
