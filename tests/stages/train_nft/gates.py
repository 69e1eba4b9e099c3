"""A reward_model/ directory as the contract wants it, with any fault planted; and a preflight's record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stateplay_rl.config.rollout import RolloutConfig
from stateplay_rl.stages.train_nft.permissions import adapter_sha256
from stateplay_rl.stores import layout
from stateplay_rl.stores.sealed import FileRef, Manifest
from tests.stages.train_nft.helpers import open_out

PROTOCOL = "5" * 64


def write_gate(root: Path, passed: bool = True, weights: bytes = b"adapter", **changes: Any) -> Path:
    """A sealed reward_model/; `changes` overwrite fields of gate.json, None removes one."""
    with open_out(root, "reward_model", RolloutConfig()) as out:
        out.write_bytes(f"{layout.ADAPTER_FOLDER}/adapter_model.safetensors", weights)
        out.write_json(f"{layout.ADAPTER_FOLDER}/adapter_config.json", {"r": 16})
        value = {
            "version": 1,
            "passed": passed,
            "adapter_sha256": _hash(out.path),
            "data_sha256": "d" * 64,
            "judge_protocol_sha256": PROTOCOL,
            "thresholds": {"pairwise_agreement": 0.6},
            **changes,
        }
        out.write_json(layout.GATE, {key: v for key, v in value.items() if v is not None})
        out.seal()
    return root


def _hash(root: Path) -> str:
    """As `adapter_sha256` will find it once the directory is sealed."""
    files = {
        f"{layout.ADAPTER_FOLDER}/{path.name}": FileRef(path.stat().st_size, _sha256(path))
        for path in (root / layout.ADAPTER_FOLDER).iterdir()
    }
    fields = dict.fromkeys(Manifest.__dataclass_fields__)
    return adapter_sha256(Manifest(**{**fields, "files": files, "root": root}))  # type: ignore[arg-type]


def _sha256(path: Path) -> str:
    from stateplay_rl.stores.atomic import sha256_file

    return sha256_file(path)


def write_preflight(root: Path, config_sha256: str, *, passed: bool = True, kind: str = "preflight") -> Path:
    with open_out(root, "verify", RolloutConfig()) as out:
        out.write_text(layout.VERIFY, json.dumps({"kind": kind, "passed": passed, "lines": []}))
        out.seal(extra={"kind": kind, "passed": passed, "train_config_sha256": config_sha256})
    return root
