"""May this world be trained on? `train-nft` asks here before it loads anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stateplay_rl.checks.audit.record import read_audit
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import CheckError, CorruptionError, InputError
from stateplay_rl.stores.atomic import sha256_file, sha256_json
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.worlds.native.shards import shards_of
from stateplay_rl.worlds.stateplay.checkout import facts_of

TRAINING_KEYS = ("verdict", "reasons", "complete_with", "trainable", "untrainable", "files", "settings_sha256")
"""What an audit must say before it is trained on."""

OWN_WORLDS = ("arena",)
"""Presets whose only code is this package's: there is no checkout to compare with."""


def require_trainable_audit(audit_dir: Path | None, world: WorldConfig, world_name: str) -> dict[str, Any]:
    """The audit of this world's very files, when it passed.

    A file counts as the audited one when size, modification time and real path are as recorded, else its
    sha256 is taken and compared.

    Args:
        audit_dir: what `sprl audit-ckpt` wrote; None when none was named.
        world: the resolved world, with absolute paths.
        world_name: value of `--world`, for the command in messages.

    Returns:
        The contents of `audit.json`.

    Raises:
        CheckError: no audit, or one that failed, is partial, rests on assumptions, or is of other files.
        InputError, UnsealedError, CorruptionError: the directory is missing, foreign, unfinished or damaged.
    """
    command = f"sprl audit-ckpt --world {world_name}"
    if audit_dir is None:
        raise CheckError(f"world {world_name} has no audit", f"run `{command} --out DIR`, then give --audit DIR")
    if not audit_dir.is_dir():
        raise InputError(f"no audit directory {audit_dir}", f"run `{command}`")
    audit = read_audit(audit_dir, TRAINING_KEYS, f"run `{command} --overwrite`")
    if audit["verdict"] != "passed":
        reasons = "; ".join(audit["reasons"][:3])
        hint = audit["complete_with"] or f"mend what it says, then run `{command} --overwrite`"
        raise CheckError(f"the audit {audit_dir} is {audit['verdict']}: {reasons}", hint)
    if not audit["trainable"]:
        reasons = "; ".join(audit["untrainable"])
        raise CheckError(f"the audit {audit_dir} cannot be trained on: {reasons}", f"run `{command}`")
    if audit["settings_sha256"] != settings_sha256(world):
        raise CheckError(
            f"the audit {audit_dir} is of another description of this world (key map, sizes or checkout changed)",
            f"run `{command} --overwrite`",
        )
    for problem in _other_files(audit, world):
        raise CheckError(f"the audit {audit_dir} is of other files: {problem}", f"run `{command} --overwrite`")
    if world.backend == "native" and world.preset not in OWN_WORLDS:
        _require_parity(world, world_name)
    return audit


def _require_parity(world: WorldConfig, world_name: str) -> None:
    """A real checkpoint runs through the native model only after that was held against the user's own code.

    Raises:
        CheckError: no passed parity record of this very world and its files against a checkout.
    """
    command = f"sprl verify parity --world CHECKOUT_WORLD.yaml --world {world_name}"
    hint = f"run `{command}`, then name its directory in the world file (parity: DIR)"
    if world.parity is None:
        raise CheckError(f"world {world_name} was never compared with the checkout that trained it", hint)
    record = read_manifest(world.parity, schema="verify", verify_files=True).extra
    if record.get("kind") != "parity" or not record["passed"]:
        raise CheckError(f"{world.parity} is no passed parity check", hint)
    files = [file for path in weight_paths(world) for file in shards_of(path)]
    this = [
        other
        for other in record["worlds"]
        if other["settings_sha256"] == settings_sha256(world) and _same_files(other["files"], files)
    ]
    if not this or all(other["backend"] != "stateplay" for other in record["worlds"]):
        raise CheckError(f"{world.parity} compared other worlds than {world_name} with a checkout", hint)


def weight_paths(world: WorldConfig) -> tuple[Path, ...]:
    """Where a world's weights are: files, indices or folders."""
    files = world.files
    return (*files.checkpoint, *files.base, files.transition_tokenizer, files.vae, files.text_encoder)


def _same_files(recorded: Iterable[Mapping[str, Any]], files: Iterable[Path]) -> bool:
    """Whether the recorded stamps are those of these files now."""
    now = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return [(file["size"], file["mtime_ns"]) for file in recorded] == now


def refuse_changed_files(audit: Mapping[str, Any]) -> None:
    """Re-check the protected files at the end of a run: size, modification time, and sha256 where it was taken.

    Raises:
        CorruptionError: a file is gone or is no longer what was audited.
    """
    for recorded in audit.get("files", ()):
        path = Path(recorded["path"])
        if not path.is_file() or not _same(path, recorded):
            raise CorruptionError(
                f"{path} is no longer the file that was audited", "restore it; the run's results are of the old one"
            )


def settings_sha256(world: WorldConfig) -> str:
    """Hash of what a world file says beside the files: another key map or other sizes make another world."""
    parts = {"backend", "preset", "key_map", "architecture", "checkout_options"}
    described = world.model_dump(mode="json", include=parts)
    if world.checkout is not None:
        described["code"] = facts_of(world.checkout).code_sha256
    return sha256_json(described)


def _other_files(audit: Mapping[str, Any], world: WorldConfig) -> Iterator[str]:
    """Why the audited files are not the world's; nothing when they are."""
    files = world.files
    groups = {
        "sft": _expanded(files.checkpoint),
        "tokenizer": _expanded([files.transition_tokenizer]),
        "base": _expanded([*files.base, files.vae, files.text_encoder]),
        "text_tokenizer": (files.text_tokenizer,),
        "training_config": () if files.training_config is None else (files.training_config,),
    }
    for role, paths in groups.items():
        recorded = [file for file in audit["files"] if file["role"] in (role, "base")]
        for path in paths:
            if not any(_same(path, file) for file in recorded):
                yield f"{path} ({role}) is not among them"


def _expanded(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The files behind paths that may be indices or folders of shards."""
    return tuple(file for path in paths for file in shards_of(path))


def _same(path: Path, recorded: Mapping[str, Any]) -> bool:
    file = path / "tokenizer.json" if path.is_dir() else path
    stat = file.stat()
    if stat.st_size != recorded["size"]:
        return False
    if str(file.resolve()) == recorded["realpath"] and stat.st_mtime_ns == recorded["mtime_ns"]:
        return True
    return recorded["sha256"] is not None and sha256_file(file) == recorded["sha256"]
