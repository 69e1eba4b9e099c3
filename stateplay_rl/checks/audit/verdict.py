"""From findings to a verdict: `passed`, `partial` (more files would complete it) or `failed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stateplay_rl.checks.audit import classify as kinds
from stateplay_rl.checks.audit.architecture import ArchitectureRow, sizes_described
from stateplay_rl.checks.audit.coverage import Coverage, Given
from stateplay_rl.checks.audit.expected import COMPONENTS, TOKENIZER, ExpectedTensor
from stateplay_rl.checks.audit.health import Finding
from stateplay_rl.checks.audit.provenance import ProvenanceRow
from stateplay_rl.worlds.native.presets import PRESETS

VerdictName = Literal["passed", "partial", "failed"]
NAMES_SHOWN = 4


@dataclass(frozen=True)
class Evidence:
    """All that a verdict is drawn from.

    Args:
        given: what was given, the SFT checkpoint first.
        preset_name: the world's preset; None when no world fits.
        assumed: settings that neither shapes nor the world description show.
        stated: setting -> value and who states it.
        complete: every file of the world was given, so what is missing is missing for good.
    """

    given: tuple[Given, ...]
    preset_name: str | None
    architecture: tuple[ArchitectureRow, ...]
    coverage: Coverage
    rows: tuple[ProvenanceRow, ...]
    health: tuple[Finding, ...]
    assumed: tuple[str, ...]
    stated: Mapping[str, str] = field(default_factory=dict)
    allow_init: bool = False
    complete: bool = False

    @property
    def sft(self) -> Given:
        """The checkpoint that is audited."""
        return self.given[0]


@dataclass(frozen=True)
class Verdict:
    """The outcome.

    Args:
        failures: why it failed; empty otherwise.
        lacking: what is missing for a pass, where more files would help.
        untrainable: why `train-nft` refuses it all the same; empty when it may be trained on.
    """

    name: VerdictName
    failures: tuple[str, ...]
    lacking: tuple[str, ...]
    untrainable: tuple[str, ...]

    @property
    def trainable(self) -> bool:
        """Passed without reservations."""
        return self.name == "passed" and not self.untrainable


def judge(evidence: Evidence) -> Verdict:
    """The verdict on what was found.

    Any implicit-state parameter that would be left at random initialisation is a failure: no file but the SFT
    checkpoint can hold it. Other parts that no file holds make a scoped checkpoint `partial` as long as the
    files that could hold them were not given.
    """
    # What a damaged file seems to be made of says nothing more.
    failures = _file_failures(evidence.given) or _kind_failures(evidence)
    lacking: list[str] = []
    if not failures:
        failures += _architecture_failures(evidence)
        more, lacking = _missing(evidence)
        failures += more + _misplaced(evidence)
        failures += [finding.message for finding in evidence.health if finding.severity == "failure"]
    name: VerdictName = "failed" if failures else "partial" if lacking else "passed"
    return Verdict(name, tuple(failures), tuple(lacking), tuple(_untrainable(evidence)))


def _file_failures(given: Sequence[Given]) -> list[str]:
    problems = [text for source in given for text in source.checkpoint.all_problems]
    problems += [
        f"{source.checkpoint.path.name}: {len(source.collisions)} names are equal without their prefixes "
        f"({_some(source.collisions)})"
        for source in given
        if source.collisions
    ]
    return problems


def _kind_failures(evidence: Evidence) -> list[str]:
    kind = evidence.sft.kind
    if kind != kinds.IMPLICIT and not (kind == kinds.PLAIN_WAN and evidence.allow_init):
        more = "; every latent-state parameter would be left at random" if kind == kinds.PLAIN_WAN else ""
        return [f"this is {kinds.SENTENCES[kind]}{more}"]
    refused = (kinds.EXPLICIT, kinds.MIXED)
    problems = [
        f"{source.role} {source.checkpoint.path.name} is {kinds.SENTENCES[source.kind]}"
        for source in evidence.given[1:]
        if source.kind in refused
    ]
    if evidence.preset_name is None:
        problems.append("no known world has these sizes: describe it with --world FILE" + _nearest(evidence))
    return problems


def _nearest(evidence: Evidence) -> str:
    """What keeps the shapes from being those of the preset that most of them fit."""
    shown = {row.setting: row.from_shapes for row in evidence.architecture if row.from_shapes is not None}
    if not shown:
        return ""
    differences = {
        name: [f"{k} {v} instead of {described[k]}" for k, v in shown.items() if described[k] != v]
        for name, described in ((name, sizes_described(preset)) for name, preset in PRESETS.items())
    }
    name = min(differences, key=lambda n: len(differences[n]))
    return f" (nearest is {name}: {_some(differences[name])})"


def _architecture_failures(evidence: Evidence) -> list[str]:
    return [
        f"{row.setting}: the shapes say {row.from_shapes}, the world description {row.described}"
        for row in evidence.architecture
        if row.disagrees
    ]


def _missing(evidence: Evidence) -> tuple[list[str], list[str]]:
    """Missing tensors as (failures, what more files would bring)."""
    if evidence.allow_init:
        return [], []
    unfilled = {(row.component, row.name) for row in evidence.rows if row.source == "initialised"}
    missing = [t for t in evidence.coverage.missing if (t.component, t.name) in unfilled]
    failures: list[str] = []
    lacking: list[str] = []
    implicit = [t for t in missing if t.implicit]
    if implicit:
        failures.append(
            f"{len(implicit)} latent-state parameters would be left at random initialisation: {_names(implicit)}"
        )
    for component in COMPONENTS:
        rest = [t for t in missing if t.component == component and not t.implicit]
        if not rest:
            continue
        text = f"{len(rest)} tensors of the {component} are in no given file: {_names(rest)}"
        final = evidence.complete or _has_part_of(evidence, component)
        (failures if final else lacking).append(text)
    return failures, lacking


def _has_part_of(evidence: Evidence, component: str) -> bool:
    """Whether a file beside the checkpoint was meant to hold this component."""
    return any(p.component == component for source in evidence.given[1:] for p in source.placed)


def _misplaced(evidence: Evidence) -> list[str]:
    coverage = evidence.coverage
    failures = [
        f"{expected.component} {expected.name}: shape {list(placed.facts.shape)}, the model needs "
        f"{list(expected.shape)}"
        for expected, placed in coverage.wrong_shape[:NAMES_SHOWN]
    ]
    if len(coverage.wrong_shape) > NAMES_SHOWN:
        failures.append(f"{len(coverage.wrong_shape) - NAMES_SHOWN} more tensors of a wrong shape")
    for source in evidence.given:
        files = {file.path for file in source.checkpoint.files}
        # A base folder may hold files of other tools; only those of a known part of the model must fit.
        strange = [
            p.facts.name
            for p in coverage.unexpected
            if p.facts.file in files and (source.role != "base" or p.component)
        ]
        if strange:
            failures.append(
                f"{source.checkpoint.path.name}: {len(strange)} names have no place in the model: {_some(strange)}"
                + (
                    " (other inner names? translate them with key_map in the world file)"
                    if source.role == "sft"
                    else ""
                )
            )
    return failures


def _untrainable(evidence: Evidence) -> list[str]:
    reasons: list[str] = []
    initialised = sum(row.source == "initialised" for row in evidence.rows)
    if evidence.allow_init and initialised:
        reasons.append(f"--allow-init: {initialised} parameters and buffers would be random")
    elif evidence.allow_init:
        reasons.append("--allow-init is for inspection only")
    assumed = [f"{row.component} {row.name}" for row in evidence.rows if row.source == "assumed"]
    assumed += evidence.assumed
    if assumed:
        reasons.append(
            f"assumed, not known: {_some(assumed, 12)}; state them in the world file (architecture:) or name the "
            "training config (files.training_config)"
        )
    return reasons


def completing_command(evidence: Evidence, world: str | None) -> str:
    """The command that would complete a partial audit; capitals stand for paths still to be filled in."""
    checkpoint = evidence.sft.checkpoint.path
    words = ["sprl audit-ckpt", str(checkpoint)]
    if world is not None:
        words.append(f"--world {world}")
    given = {role: [s for s in evidence.given if s.role == role] for role in ("base", "tokenizer")}
    lacking = {row.component for row in evidence.rows if row.source == "initialised"}
    words += [f"--base {source.checkpoint.path}" for source in given["base"]]
    if lacking - {TOKENIZER}:
        words.append("--base BASE_MODEL_FOLDER")
    words += [f"--tokenizer {source.checkpoint.path}" for source in given["tokenizer"]]
    if TOKENIZER in lacking and not given["tokenizer"]:
        words.append("--tokenizer TRANSITION_TOKENIZER_FILE")
    return " ".join(words)


def _names(tensors: Sequence[ExpectedTensor]) -> str:
    return _some([tensor.name for tensor in tensors])


def _some(names: Sequence[str], shown: int = NAMES_SHOWN) -> str:
    text = ", ".join(names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"
