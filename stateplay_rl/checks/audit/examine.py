"""The whole examination of given files, without writing anything: what `audit-ckpt` and tests call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.checks.audit.architecture import compare_architecture, sizes_described, sizes_shown
from stateplay_rl.checks.audit.coverage import Coverage, Given, Placed, cover, understand
from stateplay_rl.checks.audit.expected import TRANSFORMER, expected_tensors
from stateplay_rl.checks.audit.files import Checkpoint, FileFacts, open_checkpoint
from stateplay_rl.checks.audit.health import Finding, Progress, findings
from stateplay_rl.checks.audit.provenance import provenance
from stateplay_rl.checks.audit.verdict import Evidence, Verdict, judge
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.worlds.native.presets import PRESETS

UNSEEN = ("heads", "eps", "fsq_levels", "state_heads", "coupling_heads", "step_encoding", "visibility")
"""Settings that no shape shows."""

CONFIRMED: Mapping[str, tuple[str, ...]] = {"arena": UNSEEN, "stateplay-5b": ("heads", "eps")}
"""Of those, what is on record for each preset; the rest is an assumption, and training refuses it."""


@dataclass(frozen=True)
class Targets:
    """What to examine.

    Args:
        checkpoint: files of the SFT checkpoint; several are shards.
        base: files or folders of the base model.
        tokenizer: the transition tokenizer.
        preset: the world's preset; None: inferred from shapes.
        complete: the description names every file of the world, so nothing more can be given.
    """

    checkpoint: tuple[Path, ...]
    base: tuple[Path, ...] = ()
    tokenizer: Path | None = None
    preset: str | None = None
    complete: bool = False


@dataclass(frozen=True)
class Examination:
    """Everything that was found, and the verdict on it."""

    evidence: Evidence
    verdict: Verdict
    inferred: bool

    @property
    def files(self) -> tuple[tuple[str, FileFacts], ...]:
        """Every file with the role that it was given in."""
        return tuple((given.role, file) for given in self.evidence.given for file in given.checkpoint.files)


def examine(
    targets: Targets, *, scan: bool = False, allow_init: bool = False, progress: Progress | None = None
) -> Examination:
    """Open, classify, cover, check and judge.

    Args:
        targets: what to examine.
        scan: read every tensor.
        allow_init: accept parameters that no file holds; the result cannot be trained on.
        progress: called with (bytes read, bytes in all) during a scan.

    Raises:
        InputError: a path that does not exist or cannot be read.
    """
    given = _understand_all(targets)
    preset_name = targets.preset or infer_preset(given)
    expected = expected_tensors(preset_name) if preset_name else ()
    coverage = cover(expected, given)
    rows = provenance(expected, coverage, preset_name or "")
    preset = PRESETS[preset_name] if preset_name else None
    transformer = [p for source in given for p in source.placed if p.component == TRANSFORMER]
    confirmed = CONFIRMED.get(preset_name or "", ())
    evidence = Evidence(
        given=given,
        preset_name=preset_name,
        architecture=compare_architecture(transformer, preset),
        coverage=coverage,
        rows=rows,
        health=(*_health(given, coverage, scan, progress), *_tokenizer_record(given)),
        assumed=tuple(name for name in UNSEEN if name not in confirmed),
        allow_init=allow_init,
        complete=targets.complete,
    )
    return Examination(evidence, judge(evidence), inferred=targets.preset is None)


def _understand_all(targets: Targets) -> tuple[Given, ...]:
    opened = [open_checkpoint(path) for path in targets.checkpoint]
    main = opened[0] if len(opened) == 1 else _merged(opened)
    given = [understand("sft", main)]
    given += [understand("base", open_checkpoint(path)) for path in targets.base]
    if targets.tokenizer is not None:
        given.append(understand("tokenizer", open_checkpoint(targets.tokenizer)))
    return tuple(given)


def _merged(shards: Sequence[Checkpoint]) -> Checkpoint:
    """Shards that a world file lists one by one; given together, none of their siblings is missing."""
    files = tuple(file for shard in shards for file in shard.files)
    return Checkpoint(shards[0].path, "sharded", files)


def infer_preset(given: Sequence[Given]) -> str | None:
    """The one preset that no shape of the checkpoint contradicts; None when there is none or no evidence."""
    shown = sizes_shown(given[0].placed)
    if "dim" not in shown:
        return None
    fitting = []
    for name, preset in PRESETS.items():
        described = sizes_described(preset)
        # A scoped file may hold the first blocks only; everything else must agree.
        exact = all(described[key] == value for key, value in shown.items() if key != "layers")
        if exact and shown.get("layers", 0) <= described["layers"]:
            fitting.append(name)
    return fitting[0] if len(fitting) == 1 else None


def _health(
    given: Sequence[Given], coverage: Coverage, scan: bool, progress: Callable[[int, int], None] | None
) -> tuple[Finding, ...]:
    """Values of readable files only: the tensors that make the model, and LoRA factors beside them."""
    sound = {file.path for source in given for file in source.checkpoint.files if file.state == "sound"}
    unused = [p for p in coverage.unexpected if p.facts.file in sound]
    chosen = [p for p in coverage.chosen.values() if p.facts.file in sound]
    return findings([*chosen, *unused], _codes(given), scan=scan, progress=progress)


def _codes(given: Sequence[Given]) -> int | None:
    placed: list[Placed] = [p for source in given for p in source.placed]
    return sizes_shown(placed).get("codes")


def _tokenizer_record(given: Sequence[Given]) -> tuple[Finding, ...]:
    """The tokenizer's hash against the one in the SFT file's metadata, where that is on record."""
    tokenizers = [f for source in given if source.role == "tokenizer" for f in source.checkpoint.files]
    recorded = {
        value
        for file in given[0].checkpoint.files
        for key, value in file.metadata
        if "tokenizer" in key and "sha256" in key and "text" not in key
    }
    if len(tokenizers) != 1:
        return ()
    if not recorded:
        text = "the checkpoint does not record which transition tokenizer it was trained with"
        return (Finding("note", "tokenizer", text),)
    sha256 = sha256_file(tokenizers[0].path)
    if recorded != {sha256}:
        text = f"the checkpoint was trained with tokenizer {', '.join(sorted(recorded))}, this one is {sha256}"
        return (Finding("failure", "tokenizer", text),)
    return (Finding("note", "tokenizer", f"the tokenizer is the recorded one ({sha256[:12]})"),)
