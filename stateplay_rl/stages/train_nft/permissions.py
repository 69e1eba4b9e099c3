"""Who may start a long stage: stage C with the gate of its very student, production with a passed preflight.

The contract for `reward_model/` and for a preflight's record: docs/decisions/031-gate-and-preflight.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.base import config_dict
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.errors import CheckError, CorruptionError, InputError, SprlError, UsageError
from stateplay_rl.judges.base import Judge
from stateplay_rl.reward_model.judge import StudentJudge
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_json
from stateplay_rl.stores.foreign import parse_json
from stateplay_rl.stores.manifest import Manifest, read_manifest
from stateplay_rl.stores.sealed import read_checked

NOT_IN_PREFLIGHT = ("preflight", "plan", "judging", "tracker", "keep_checkpoints")
"""Settings that do not change what a preflight looked at."""
SMOKE_HINT = "train it further (sprl train-rm), or try at most 10 batches with --force-without-gate"


@dataclass(frozen=True)
class Gate:
    """A student's gate as stage C needs it.

    Args:
        passed: its verdict.
        adapter_sha256: hash of the adapter that was judged good or not.
        min_pairwise_agreement: threshold of the within-group agreement with the API judge, 0..1.
        tie_points: scores no further apart were counted as tied.
    """

    passed: bool
    adapter_sha256: str
    min_pairwise_agreement: float
    tie_points: int = 0


def adapter_sha256(manifest: Manifest) -> str:
    """Identity of a PEFT adapter: names and hashes of the files below `adapter/`, as the manifest lists them.

    Raises:
        CorruptionError: the directory holds no adapter.
    """
    prefix = f"{layout.ADAPTER_FOLDER}/"
    files = {name.removeprefix(prefix): ref.sha256 for name, ref in manifest.files.items() if name.startswith(prefix)}
    if not files:
        raise CorruptionError(f"{manifest.root} holds no {layout.ADAPTER_FOLDER}/", "train it: sprl train-rm")
    return sha256_json(files)


def read_gate(reward_model: Path, judge: Judge | None) -> Gate:
    """The gate of the adapter in `reward_model/`, checked against the adapter's bytes and the judge that will score.

    Args:
        reward_model: a sealed reward_model/ directory.
        judge: stage C's judge; None leaves that comparison out (a plan loads no judge).

    Raises:
        UnsealedError, InputError, CorruptionError: the directory is unfinished, foreign or damaged.
        CheckError: the gate is of another adapter, or of another judge than the one that would score.
    """
    manifest = read_manifest(reward_model, schema="reward_model", verify_files=True)
    file = reward_model / layout.GATE
    try:
        value: Mapping[str, Any] = parse_json(read_checked(manifest, layout.GATE))
        passed, named = value["passed"], str(value["adapter_sha256"])
        threshold = float(value["thresholds"]["pairwise_agreement"])
        tie_points = int(value["thresholds"].get("tie_points", 0))
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptionError(f"{file} lacks or misstates field {error}", "run sprl train-rm again") from error
    if not isinstance(passed, bool):
        raise CorruptionError(f"{file}: field 'passed' is {passed!r}, not true or false", "run sprl train-rm again")
    found = adapter_sha256(manifest)
    if found != named:
        raise CheckError(
            f"{file} is the gate of adapter {named[:12]}, {reward_model} holds adapter {found[:12]}",
            "evaluate this adapter: sprl train-rm",
        )
    protocol = value.get("judge_protocol_sha256")
    if judge is not None and protocol != judge.protocol_sha256:
        raise CheckError(
            f"{file} was passed by judge protocol {str(protocol)[:12]}, the judge {judge.judge_id} of this run has "
            f"{judge.protocol_sha256[:12]}",
            "give the student whose gate this is (--judge student --reward-model DIR)",
        )
    return Gate(passed, named, threshold, tie_points)


def would_be_smoke(config: TrainNftConfig) -> bool:
    """For a plan: whether stage C would run without its gate; the judge itself is not looked at.

    Raises:
        CheckError: it would be refused.
    """
    return require_gate(config, None)[1]


def require_gate(config: TrainNftConfig, judge: Judge | None) -> tuple[Gate | None, bool]:
    """Whether stage C may start: (its gate, whether it is a smoke run).

    Raises:
        CheckError: no gate, a gate that is not passed, or the gate of another adapter or judge.
    """
    if config.stage != "c":
        return None, False
    try:
        folder = config.gated_reward_model
        if folder is None:
            raise CheckError("stage C needs the gate of its student", "give --reward-model DIR of sprl train-rm")
        gate = read_gate(folder, judge)
        if not gate.passed:
            raise CheckError(
                f"{folder / layout.GATE}: the student did not pass",
                f"grow stage A (--extend 280) and {SMOKE_HINT}",
            )
    except SprlError as error:
        if not config.force_without_gate:
            if isinstance(error, InputError):
                raise CheckError(f"stage C cannot start: {error.what}", error.hint) from error
            raise
        return None, True
    return gate, False


def require_known_groups(config: TrainNftConfig, judge: Judge) -> None:
    """A student scores only groups with as many candidates as those that it learned from.

    Raises:
        InputError: the run's batches or its held-out groups have another number.
    """
    if not isinstance(judge, StudentJudge):
        return
    asked = {"sampling.candidates": config.sampling.candidates}
    if config.heldout.conditions:
        asked["heldout.samples"] = config.heldout.samples
    for name, count in asked.items():
        judge.require_candidates(count, f"{name} asks for", f"use --set {name}={judge.facts.candidates[0]}")


def preflight_config(config: TrainNftConfig) -> str:
    """Hash of what a preflight looked at: this very config, without where its own record lies."""
    values = {key: value for key, value in config_dict(config).items() if key not in NOT_IN_PREFLIGHT}
    return sha256_json(values)


def require_preflight(config: TrainNftConfig) -> None:
    """In production mode: a passed preflight of this very config.

    Raises:
        UsageError: production mode with what only development allows.
        CheckError: no preflight, one that failed, or one of another config.
        InputError: the record is missing, unfinished or damaged.
    """
    if config.run_mode != "production":
        return
    again = "sprl verify preflight CONFIG, then --set preflight=verify-<utc>"
    if config.force_without_gate:
        raise UsageError("production mode has no --force-without-gate", "leave it out, or set run_mode: standard")
    if config.preflight is None:
        raise CheckError("production mode needs a passed preflight of this config", again)
    manifest = read_manifest(config.preflight, schema="verify", verify_files=True)
    if manifest.extra.get("kind") != "preflight":
        raise CheckError(f"{config.preflight} is a {manifest.extra.get('kind')!r} record, not a preflight", again)
    if manifest.extra.get("passed") is not True:
        raise CheckError(f"the preflight {config.preflight} did not pass", f"see its verify.json; then {again}")
    if manifest.extra.get("train_config_sha256") != preflight_config(config):
        raise CheckError(f"the preflight {config.preflight} is of another config", again)
    if config.stage == "c" and config.audits.judge is None:
        raise UsageError("production mode audits stage C", "set audits.judge (the API judge)")
