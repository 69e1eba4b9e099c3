"""The whole examination of given files, without writing anything: what `audit-ckpt` and tests call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stateplay_rl.checks.audit.architecture import compare_architecture, sizes_described, sizes_shown
from stateplay_rl.checks.audit.checkout import CheckoutModel
from stateplay_rl.checks.audit.coverage import Coverage, Given, Placed, cover, understand
from stateplay_rl.checks.audit.expected import TRANSFORMER, expected_tensors
from stateplay_rl.checks.audit.files import Checkpoint, FileFacts, open_checkpoint, open_together
from stateplay_rl.checks.audit.health import Finding, Progress, findings, stored_levels
from stateplay_rl.checks.audit.provenance import provenance
from stateplay_rl.checks.audit.verdict import Evidence, Verdict, judge
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.worlds.native.architecture import UNSEEN, Architecture, build
from stateplay_rl.worlds.native.keymap import Translations
from stateplay_rl.worlds.native.presets import PRESETS


@dataclass(frozen=True)
class Targets:
    """What to examine.

    Args:
        checkpoint: files of the SFT checkpoint; several are shards.
        base: files or folders of the base model.
        tokenizer: the transition tokenizer.
        preset: the world's preset; None: inferred from shapes.
        architecture: sizes and statements of the world file and the training config; None: the preset alone.
        translations: the world file's key map, as sorted pairs.
        checkout: the model of a checkout, which then says itself what it consists of and what it computes.
        complete: the description names every file of the world, so nothing more can be given.
    """

    checkpoint: tuple[Path, ...]
    base: tuple[Path, ...] = ()
    tokenizer: Path | None = None
    preset: str | None = None
    architecture: Architecture | None = None
    training_config: Path | None = None
    training_keys: Mapping[str, str] = field(default_factory=dict)
    translations: Translations = ()
    checkout: CheckoutModel | None = None
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
    architecture = targets.architecture
    if architecture is None and preset_name:
        architecture = build(preset_name, {}, targets.training_config, targets.training_keys)
    if targets.checkout is not None:
        # Its code is the description: nothing is assumed, and nothing of ours is compared.
        architecture, expected = None, targets.checkout.expected
    else:
        expected = expected_tensors(preset_name, architecture.sizes if architecture else None) if preset_name else ()
    coverage = cover(expected, given)
    levels = stored_levels(coverage)
    transformer = [p for source in given for p in source.placed if p.component == TRANSFORMER]
    evidence = Evidence(
        given=given,
        preset_name=preset_name,
        architecture=compare_architecture(transformer, architecture.sizes if architecture else None),
        coverage=coverage,
        rows=provenance(
            expected, coverage, preset_name or "", architecture, computed_buffers=targets.checkout is not None
        ),
        health=(
            *_health(given, coverage, scan, progress),
            *_described_levels(levels, architecture),
            *_tokenizer_record(given, architecture),
        ),
        # The tokenizer file's own levels say what they are.
        assumed=tuple(n for n in _assumed(targets, architecture) if n != "fsq_levels" or not levels),
        stated={name: f"{s.value} ({s.source})" for name, s in (architecture.stated if architecture else {}).items()},
        allow_init=allow_init,
        complete=targets.complete,
    )
    return Examination(evidence, judge(evidence), inferred=targets.preset is None)


def _assumed(targets: Targets, architecture: Architecture | None) -> tuple[str, ...]:
    if targets.checkout is not None:
        return ()
    return architecture.assumed if architecture else UNSEEN


def _understand_all(targets: Targets) -> tuple[Given, ...]:
    opened = open_together(targets.checkpoint)
    main = opened[0] if len(opened) == 1 else _merged(opened)
    naming = targets.checkout.naming if targets.checkout else None
    given = [understand("sft", main, targets.translations, naming)]
    given += [understand("base", checkpoint, naming=naming) for checkpoint in open_together(targets.base)]
    if targets.tokenizer is not None:
        given.append(understand("tokenizer", open_checkpoint(targets.tokenizer), naming=naming))
    return tuple(given)


def _merged(shards: Sequence[Checkpoint]) -> Checkpoint:
    """Shards that a world file lists one by one, as one checkpoint."""
    files = tuple(file for shard in shards for file in shard.files)
    return Checkpoint(shards[0].path, "sharded", files, tuple(text for shard in shards for text in shard.problems))


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


def _described_levels(levels: tuple[int, ...], architecture: Architecture | None) -> tuple[Finding, ...]:
    """The tokenizer file's levels against the described ones: the same codes must mean the same."""
    described = architecture.sizes.latent_state.fsq_levels if architecture else levels
    if not levels or levels == described:
        return ()
    text = f"quantizer levels {list(levels)} in the tokenizer file, {list(described)} in the world description"
    return (Finding("failure", "codebook", text),)


def _tokenizer_record(given: Sequence[Given], architecture: Architecture | None) -> tuple[Finding, ...]:
    """The tokenizer's hash against the one that the SFT run used: in its config or in the file's metadata."""
    tokenizers = [f for source in given if source.role == "tokenizer" for f in source.checkpoint.files]
    recorded = {
        value
        for file in given[0].checkpoint.files
        for key, value in file.metadata
        if "tokenizer" in key and "sha256" in key and "text" not in key
    }
    if architecture is not None and architecture.tokenizer_sha256 is not None:
        recorded.add(architecture.tokenizer_sha256)
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
