"""A small sealed reward_model/ directory, for the judge `student` and for who asks its gate."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from stateplay_rl.config.judging import ProtocolConfig
from stateplay_rl.config.rollout import RolloutConfig
from stateplay_rl.judges.protocol import JudgingProtocol
from stateplay_rl.reward_model import lora
from stateplay_rl.reward_model.student import StudentFacts, adapter_sha256
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import OutputDirectory
from tests.reward_model.arena_groups import SHOWN
from tests.reward_model.small_groups import load_small_model

PROTOCOL = JudgingProtocol(ProtocolConfig(frames=SHOWN))


def seal(out: Path, model: Path, *, passed: bool | None = None, **changes: object) -> Path:
    """A reward_model directory with an adapter that has learnt nothing; `passed`: with a gate that it met or missed."""
    base = load_small_model(model)
    facts = StudentFacts(
        base=os.path.relpath(model, out),
        base_sha256=base.sha256,
        protocol={**PROTOCOL.config.model_dump(mode="json"), "example_images": []},
        protocol_sha256=PROTOCOL.sha256,
        reading="greedy",
        precision="float32",
        delta_rule="auto",
        fused="auto",
        attention="default",
        max_length=65536,
        candidates=(4,),
    )
    facts = replace(facts, **changes)  # type: ignore[arg-type]
    targets = lora.find_targets(base.model, base.layer_types)
    wrapped = lora.attach(base.model, targets, rank=2, alpha=2, dropout=0.0, seed=0)
    with OutputDirectory.open(
        out,
        schema="reward_model",
        version=1,
        command="train-rm",
        config=RolloutConfig(),
        inputs={},
        resume=False,
        overwrite=False,
    ) as output:
        (out / layout.ADAPTER_FOLDER).mkdir()
        lora.save_adapter(wrapped, out / layout.ADAPTER_FOLDER, "tiny")
        output.write_json(layout.STUDENT, facts.to_json())
        if passed is not None:
            output.write_json(layout.GATE, gate(out / layout.ADAPTER_FOLDER, facts, passed))
        output.seal()
    return out


def gate(adapter: Path, facts: StudentFacts, passed: bool) -> dict[str, Any]:
    """`gate.json` of an adapter."""
    sha256 = adapter_sha256(adapter)
    return {
        "version": 1,
        "passed": passed,
        "adapter_sha256": sha256,
        "data_sha256": "d" * 64,
        "judge_protocol_sha256": facts.judge_protocol_sha256(sha256),
        "thresholds": {"pairwise_agreement": 0.6},
    }
