"""The whole stage on tiny worlds: directories, settings, and what must not depend on the way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.stages.train_nft import opening
from stateplay_rl.stages.train_nft import run as stage
from stateplay_rl.stages.train_nft.run import TrainInputs, TrainSummary
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.worlds.policy_bank import sha256_tensors
from tests.stages.train_nft.helpers import BrightJudge, make_config
from tests.worlds.tiny import tiny_world

LOGS = (layout.METRICS, layout.HELDOUT)


class Lab:
    """Runs the stage on tiny worlds; the worlds and judges of all runs are kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, conditions: ConditionStore) -> None:
        self.conditions = conditions
        self.worlds: list[Any] = []
        self.judge = BrightJudge()
        self.referee: BrightJudge | None = None
        self.student = BrightJudge(factor=11.0)
        self.student.judge_id, self.student.protocol_sha256 = "student", "5" * 64
        monkeypatch.setattr(stage, "resolve_world", lambda name: SimpleNamespace(files=(), audit=None))
        monkeypatch.setattr(opening, "all_files", lambda files: ())
        monkeypatch.setattr(stage, "require_disk", lambda *arguments: None)
        monkeypatch.setattr(stage, "make_referee", lambda spec, world: self.referee)
        monkeypatch.setattr(stage, "require_trainable_audit", lambda *arguments: {})
        monkeypatch.setattr(stage, "load_world", self._load)
        monkeypatch.setattr(stage, "make_judge", self._judge)

    def _load(self, config: object) -> Any:
        self.worlds.append(tiny_world())
        return self.worlds[-1]

    def _judge(self, spec: Any, world: str, out: Path) -> BrightJudge:
        return self.student if spec.name in ("student", "plug_in:Student") else self.judge

    def run(self, out: Path, resume: bool = False, overwrite: bool = False, **changes: Any) -> TrainSummary:
        inputs = TrainInputs(self.conditions.root, resume=resume, overwrite=overwrite)
        return stage.run(settings(**changes), inputs, out)


def settings(**changes: Any) -> TrainNftConfig:
    facts = {
        "optimizer": {"samples_per_step": 2, "inner_epochs": 1, "learning_rate_transition": 1e-3},
        "heldout": {"conditions": 2, "samples": 1, "every_batches": 1},
        "stage_conditions": 4,
        **changes,
    }
    return make_config(**facts)


def results(run: Path) -> dict[str, Any]:
    """Everything that must not depend on what happened on the way."""
    with Ledger.open(run / layout.LEDGER, read_only=True) as ledger:
        digest = ledger.digest()
    return {
        "policies": {p.name: p.read_bytes() for p in sorted((run / layout.POLICY_FOLDER).iterdir())}.keys(),
        "live": load_live(run),
        "ledger": digest,
        **{name: file.read_bytes() if (file := run / name).is_file() else b"" for name in LOGS},
        "verdicts": [p.read_bytes() for p in sorted(run.glob(f"segments/*/{layout.VERDICTS}"))],
    }


def load_live(run: Path) -> str:
    extra = read_manifest(run, schema="run", verify_files=True).extra
    return sha256_tensors(load_file(run / layout.policy_file(extra["policies"]["live"])))
