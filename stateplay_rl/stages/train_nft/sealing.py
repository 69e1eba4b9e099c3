"""The end of a segment: export the policies, seal the segment, then the run, and say what came out."""

from __future__ import annotations

from pathlib import Path

from stateplay_rl.stages.candidates import policy_sha256
from stateplay_rl.stages.train_nft.inputs import TrainSummary
from stateplay_rl.stages.train_nft.loop import Trainer
from stateplay_rl.stages.train_nft.naming import run_name
from stateplay_rl.stages.verdicts import write_score_table
from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.manifest import OutputDirectory, is_sealed, read_manifest
from stateplay_rl.stores.segments import list_segments
from stateplay_rl.worlds.base import PolicyName
from stateplay_rl.worlds.native.weights import write_safetensors

EXPORTED: tuple[PolicyName, ...] = ("live", "old")


def finish(trainer: Trainer, segment: OutputDirectory | None, output: OutputDirectory | None) -> None:
    """Rank 0: export, seal the segment, seal the run. Every step may be done again after a kill."""
    assert segment is not None, "rank 0 seals"
    assert output is not None, "rank 0 seals"
    assert trainer.booking is not None, "rank 0 seals"
    ledger = trainer.booking.ledger
    exported = _export(trainer, output)
    facts = {
        "world": trainer.config.world,
        "world_sha256": trainer.world.sha256,
        "world_facts": dict(trainer.world.facts),
        "name": run_name(trainer.config, trainer.plan),
        "policies": exported,
        "optimizer_steps": trainer.updater.optimizer_steps,
        "candidates_seen": trainer.position.candidates_seen,
        "ledger": dict(ledger.counts()),
        "parameters": {group.name: group.count for group in trainer.updater.groups},
    }
    if not segment.already_sealed:
        trainer.booking.discard_in_flight()
        lines = LineLog(segment.path / layout.VERDICTS).read()
        table = segment.path / layout.SCORES
        segment.hasher.record(table, write_score_table(table, lines))
        own = {
            **facts,
            "first_batch": trainer.plan.first_batch,
            "batches": trainer.position.batches_done - trainer.plan.first_batch,
            "conditions": len(lines),
            "scored": sum(line["status"] == "scored" for line in lines),
            "smoke": trainer.plan.smoke,
        }
        segment.seal(extra=own, seeds={"run": trainer.config.seed})
    ledger.close()
    output.seal(
        extra={**facts, "batches": trainer.position.batches_done, "smoke": _is_smoke(output.path)},
        seeds={"run": trainer.config.seed, "heldout": trainer.config.heldout.seed},
    )


def _export(trainer: Trainer, output: OutputDirectory) -> dict[str, str]:
    """Live and old, and the evaluation average when there is one, under the training repository's key names."""
    exported: dict[str, str] = {}
    for policy in EXPORTED:
        exported[policy] = _export_one(trainer, output, policy)
    if trainer.average is not None:
        with trainer.average.as_live():
            exported["average"] = _export_one(trainer, output, "live")
    return exported


def _export_one(trainer: Trainer, output: OutputDirectory, policy: PolicyName) -> str:
    sha256 = policy_sha256(trainer.world, policy)
    path = output.file(layout.policy_file(sha256))
    # Nothing of this run's own goes in: the same weights are the same file.
    write_safetensors(path, trainer.world.export_policy(policy), {"policy_sha256": sha256})
    return sha256


def _is_smoke(run: Path) -> bool:
    """Whether any segment was forced without its gate: the mark stays."""
    sealed = [segment for segment in list_segments(run) if segment.sealed]
    return any(read_manifest(segment.path, schema="segment").extra.get("smoke", False) for segment in sealed)


def summarise(out: Path, segment: Path | None = None, *, already_done: bool = False) -> TrainSummary:
    """What came out of a segment of a run.

    Args:
        segment: its folder; None for the last one.
    """
    segment = list_segments(out)[-1].path if segment is None else segment
    own = read_manifest(segment, schema="segment").extra
    # Segments of earlier versions leave these to the run.
    facts = {**(read_manifest(out, schema="run").extra if is_sealed(out) else {}), **own}
    evaluations = LineLog(out / layout.HELDOUT).read()
    # Of the last one's judge: rewards of two judges are never compared.
    evaluations = [e for e in evaluations if e.get("judge_id") == evaluations[-1].get("judge_id")]
    rewards = tuple((e["batch"], e["reward_mean"]) for e in evaluations if e["reward_mean"] is not None)
    return TrainSummary(
        out=out,
        batches=facts["batches"] + facts.get("first_batch", 0),
        optimizer_steps=facts["optimizer_steps"],
        candidates_seen=facts["candidates_seen"],
        ledger=facts["ledger"],
        heldout=rewards,
        alarms=len(LineLog(out / layout.ALARMS).read()),
        policy_file=out / layout.policy_file(facts["policies"]["live"]),
        already_done=already_done,
        segment=segment.name,
        conditions=facts.get("conditions", 0),
        scored=facts.get("scored", 0),
        left=facts["ledger"]["unseen"],
        smoke=facts.get("smoke", False),
    )
