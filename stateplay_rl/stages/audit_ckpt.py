"""`sprl audit-ckpt`: examine a checkpoint, write `audit-<stem>/`.

The checkpoint is protected: opened for reading only, its facts recorded before and compared after, and no
output directory may overlap with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.checks.audit import classify
from stateplay_rl.checks.audit.checkout import checkout_model
from stateplay_rl.checks.audit.examine import Examination, Targets, examine
from stateplay_rl.checks.audit.files import FileFacts, file_facts, open_checkpoint
from stateplay_rl.checks.audit.provenance import COLUMNS, source_counts
from stateplay_rl.checks.audit.trainable import settings_sha256
from stateplay_rl.checks.audit.verdict import completing_command
from stateplay_rl.config.audit import AuditConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import CorruptionError, UsageError
from stateplay_rl.runtime import Progress
from stateplay_rl.stores import layout, tables
from stateplay_rl.stores.manifest import OutputDirectory, resolve_out
from stateplay_rl.stores.sealed import sealed_object
from stateplay_rl.worlds.native.architecture import architecture_of
from stateplay_rl.worlds.world_files import resolve_world

HASH_CHUNK_BYTES = 1 << 24
TEXT_TOKENIZER_ROLE = "text_tokenizer"
TRAINING_CONFIG_ROLE = "training_config"
OTHER_KINDS = {TEXT_TOKENIZER_ROLE: "tokenizer_json", TRAINING_CONFIG_ROLE: "training_config"}


@dataclass(frozen=True)
class AuditMode:
    """How an existing output is treated."""

    resume: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class AuditSummary:
    """The written audit: its directory, and the contents of `audit.json`."""

    out: Path
    audit: dict[str, Any]
    already_done: bool = False

    @property
    def verdict(self) -> str:
        """`passed`, `partial` or `failed`."""
        return str(self.audit["verdict"])


def run(config: AuditConfig, out: Path | None = None, mode: AuditMode | None = None) -> AuditSummary:
    """Examine and write.

    Args:
        config: what to examine, and how deeply.
        out: the directory to write; None: `audit-<stem>/`.
        mode: what to do with an existing output.

    Raises:
        UsageError: neither a checkpoint nor a world is named.
        InputError: a path that does not exist or cannot be read.
        OutputError: the output is finished, foreign, locked, or overlaps with an audited file.
        CorruptionError: a file changed while it was read.
    """
    mode = mode or AuditMode()
    world = None if config.world is None else resolve_world(config.world)
    if world is not None and config.training_config is not None:
        # The command line stands in for the world file's line.
        named = world.files.model_copy(update={"training_config": config.training_config})
        world = world.model_copy(update={"files": named})
    targets = _targets(config, world)
    given = [*targets.checkpoint, *targets.base, *([targets.tokenizer] if targets.tokenizer else [])]
    for path in given:
        open_checkpoint(path)  # headers only: a wrong path is refused before anything is written
    folder = resolve_out(Path(layout.audit_folder(_stem(config, targets)))) if out is None else out
    with OutputDirectory.open(
        folder,
        schema="audit",
        version=layout.SCHEMAS["audit"],
        command="audit-ckpt",
        config=config,
        inputs={},
        resume=mode.resume,
        overwrite=mode.overwrite,
        protected=given,
    ) as output:
        if output.already_sealed:
            return _reopened(output.path)
        result = _examine(config, targets)
        files = _each_once([*result.files, *_other_inputs(config, world)])
        sha256 = _hashes(config, result, [facts for _, facts in files])
        by_file = {facts.realpath: sha256[facts.path] for _, facts in files if facts.path in sha256}
        # Provenance may know a file under another path (a link) than the one that is listed.
        sha256 |= {facts.path: by_file[facts.realpath] for _, facts in result.files if facts.realpath in by_file}
        _refuse_changed(facts for _, facts in files)
        audit = _audit_json(config, result, files, sha256, world)
        audit["checkout"] = None if targets.checkout is None else dict(targets.checkout.facts)
        rows = [row.table_row(sha256) for row in result.evidence.rows]
        path = output.path / layout.PROVENANCE
        output.hasher.record(path, tables.write_table(path, COLUMNS, rows))
        output.write_json(layout.AUDIT, audit)
        output.seal(extra={key: audit[key] for key in ("verdict", "trainable", "class", "world")})
    return AuditSummary(output.path, audit)


def _targets(config: AuditConfig, world: WorldConfig | None) -> Targets:
    """The named files; those that a world file names fill what the command line leaves out."""
    if world is None:
        if config.checkpoint is None:
            raise UsageError(
                "nothing to audit: neither a checkpoint nor a world is named",
                "example: sprl audit-ckpt step-4572.safetensors, or sprl audit-ckpt --world arena",
            )
        return Targets((config.checkpoint,), config.base, config.tokenizer, training_config=config.training_config)
    listed = world.files.checkpoint
    own = config.checkpoint is None or config.checkpoint.resolve() in {path.resolve() for path in listed}
    return Targets(
        checkpoint=listed if own or config.checkpoint is None else (config.checkpoint,),
        base=(*config.base, *world.files.base, world.files.vae, world.files.text_encoder),
        tokenizer=config.tokenizer or world.files.transition_tokenizer,
        preset=world.preset,
        architecture=architecture_of(world),
        checkout=checkout_model(world) if world.backend == "stateplay" else None,
        translations=tuple(sorted(world.key_map.items())),
        complete=own,
    )


def _stem(config: AuditConfig, targets: Targets) -> str:
    if config.checkpoint is None:
        return Path(str(config.world)).stem
    name = targets.checkpoint[0].name
    return name.removesuffix(".index.json").partition(".safetensors")[0].removesuffix(".pt").removesuffix(".pth")


def _examine(config: AuditConfig, targets: Targets) -> Examination:
    if not config.scan:
        return examine(targets, allow_init=config.allow_init)
    with Progress("scan", None, "bytes") as progress:

        def show(done: int, total: int) -> None:
            progress.total = total
            progress.advance(done - progress.done)

        return examine(targets, scan=True, allow_init=config.allow_init, progress=show)


def _each_once(files: Sequence[tuple[str, FileFacts]]) -> list[tuple[str, FileFacts]]:
    """A base folder also holds the VAE and the text encoder that a world file names again."""
    return list({(role, facts.realpath): (role, facts) for role, facts in reversed(files)}.values())[::-1]


def _other_inputs(config: AuditConfig, world: WorldConfig | None) -> list[tuple[str, FileFacts]]:
    """Files that hold no weights: the text tokenizer and the training config."""
    found = []
    if world is not None:
        path = world.files.text_tokenizer
        found.append((TEXT_TOKENIZER_ROLE, file_facts(path / "tokenizer.json" if path.is_dir() else path)))
    training = config.training_config if world is None else world.files.training_config
    if training is not None:
        found.append((TRAINING_CONFIG_ROLE, file_facts(training)))
    return found


def _hashes(config: AuditConfig, result: Examination, files: Sequence[FileFacts]) -> dict[Path, str]:
    """sha256 by path. Large files of an audit that did not pass are left out: its answer must not wait."""
    everything = config.hash_all or config.scan or result.verdict.name == "passed"
    wanted = [f for f in files if everything or f.size <= config.hash_limit_bytes]
    hashes: dict[Path, str] = {}
    with Progress("hash", sum(f.size for f in wanted), "bytes") as progress:
        for facts in wanted:
            digest = hashlib.sha256()
            with facts.path.open("rb") as file:
                while chunk := file.read(HASH_CHUNK_BYTES):
                    digest.update(chunk)
                    progress.advance(len(chunk), facts.path.name)
            hashes[facts.path] = digest.hexdigest()
    return hashes


def _refuse_changed(files: Iterator[FileFacts]) -> None:
    for facts in files:
        stat = facts.path.stat()
        if (stat.st_size, stat.st_mtime_ns) != (facts.size, facts.mtime_ns):
            raise CorruptionError(
                f"{facts.path} changed while it was read",
                "wait until it is written completely, then run again",
            )


def _audit_json(
    config: AuditConfig,
    result: Examination,
    files: Sequence[tuple[str, FileFacts]],
    sha256: dict[Path, str],
    world: WorldConfig | None,
) -> dict[str, Any]:
    evidence, verdict = result.evidence, result.verdict
    kind = evidence.sft.kind
    return {
        "verdict": verdict.name,
        "trainable": verdict.trainable,
        "reasons": list(verdict.failures or verdict.lacking),
        "untrainable": list(verdict.untrainable),
        "complete_with": completing_command(evidence, config.world) if verdict.name == "partial" else None,
        "class": kind,
        "class_text": classify.SENTENCES[kind],
        "world": (world.name if world else None) or evidence.preset_name,
        "preset": evidence.preset_name,
        "preset_inferred": result.inferred,
        "scan": config.scan,
        "allow_init": config.allow_init,
        "files": [_file_json(role, facts, sha256) for role, facts in files],
        "prefixes": {f"{given.role}: {text}": n for given in evidence.given for text, n in given.removed.items()},
        "name_map": {
            placed.facts.name: placed.name
            for given in evidence.given
            for placed in given.placed
            if placed.facts.name != placed.name
        },
        "architecture": [{**asdict(row), "disagrees": row.disagrees} for row in evidence.architecture],
        "assumed": list(evidence.assumed),
        "stated": dict(evidence.stated),
        "settings_sha256": None if world is None else settings_sha256(world),
        "coverage": [asdict(row) for row in evidence.coverage.modules],
        "sources": source_counts(evidence.rows),
        "health": [asdict(finding) for finding in evidence.health],
    }


def _file_json(role: str, facts: FileFacts, sha256: dict[Path, str]) -> dict[str, Any]:
    other = role in OTHER_KINDS
    return {
        "role": role,
        "path": str(facts.path.absolute()),
        "realpath": str(facts.realpath),
        "size": facts.size,
        "mtime_ns": facts.mtime_ns,
        "modified_utc": facts.modified_utc,
        "sha256": sha256.get(facts.path),
        "kind": OTHER_KINDS[role] if other else facts.kind,
        "state": "sound" if other else facts.state,
        "tensors": len(facts.tensors),
        "problems": [] if other else list(facts.problems),
    }


def _reopened(folder: Path) -> AuditSummary:
    """A finished audit, as long as its files are still the ones that it was made of."""
    audit = sealed_object(folder, "audit", layout.AUDIT)
    for file in audit["files"]:
        path = Path(file["path"])
        stat = path.stat() if path.exists() else None
        if stat is None or (stat.st_size, stat.st_mtime_ns) != (file["size"], file["mtime_ns"]):
            raise UsageError(f"{path} is no longer the file that {folder} audited", "run again with --overwrite")
    return AuditSummary(folder, audit, already_done=True)
