"""Found against expected: every tensor of every given file, placed in the assembled model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stateplay_rl.checks.audit import classify as kinds
from stateplay_rl.checks.audit.expected import (
    TEXT_ENCODER,
    TOKENIZER,
    TRANSFORMER,
    VAE,
    ExpectedTensor,
    module_of,
)
from stateplay_rl.checks.audit.files import Checkpoint, FileFacts
from stateplay_rl.checks.audit.headers import TensorFacts
from stateplay_rl.worlds.native.keymap import Translations, any_to_ours, ours_to_training, translate
from stateplay_rl.worlds.native.original_names import text_name, vae_name

_TIED = (TEXT_ENCODER, "encoder.embed_tokens.weight")
"""The same parameter as `shared.weight`; some files list it twice."""

Naming = Callable[[str, str], str]
"""(component, bare name in a file) -> name in the list of expected tensors."""

Role = Literal["sft", "base", "tokenizer"]

_COMPONENT = {
    kinds.IMPLICIT: TRANSFORMER,
    kinds.PLAIN_WAN: TRANSFORMER,
    kinds.EXPLICIT: TRANSFORMER,
    kinds.MIXED: TRANSFORMER,
    kinds.LORA: TRANSFORMER,
    kinds.TOKENIZER: TOKENIZER,
    kinds.VAE: VAE,
    kinds.TEXT_ENCODER: TEXT_ENCODER,
}


@dataclass(frozen=True)
class Placed:
    """A tensor of a file at its place in the model.

    Args:
        role: what the file was given as.
        component: part of the model that its file belongs to; empty for an unknown file.
        name: bare name, under the training repository's names for the transformer.
        facts: the tensor under its name in the file.
    """

    role: Role
    component: str
    name: str
    facts: TensorFacts


@dataclass(frozen=True)
class Given:
    """One checkpoint that was given, understood.

    Args:
        kind: class of the model by its names (`classify.py`).
        removed: prefixes that were stripped, with the number of names.
    """

    role: Role
    checkpoint: Checkpoint
    kind: str
    placed: tuple[Placed, ...]
    removed: Mapping[str, int]
    collisions: tuple[str, ...]


@dataclass(frozen=True)
class ModuleCoverage:
    """One row of the coverage table; counts of tensors."""

    module: str
    expected: int
    found: int
    missing: int
    unexpected: int
    wrong_shape: int
    elements: int
    dtypes: dict[str, int]


@dataclass(frozen=True)
class Coverage:
    """Found against expected.

    Args:
        chosen: the tensor that fills each expected one; SFT before base.
        missing: expected tensors that no file holds.
        unexpected: placed tensors that the model has no place for.
        wrong_shape: (expected, placed) pairs that do not fit.
    """

    modules: tuple[ModuleCoverage, ...]
    chosen: dict[tuple[str, str], Placed]
    missing: tuple[ExpectedTensor, ...]
    unexpected: tuple[Placed, ...]
    wrong_shape: tuple[tuple[ExpectedTensor, Placed], ...]


def understand(
    role: Role, checkpoint: Checkpoint, translations: Translations = (), naming: Naming | None = None
) -> Given:
    """Names stripped, class recognised, tensors placed; a base folder's files are classified one by one.

    Args:
        role: what the checkpoint was given as.
        checkpoint: its files.
        translations: the world file's key map, for the SFT checkpoint.
        naming: names of a checkout's own model, in place of this package's.
    """
    name_of = naming or (lambda component, name: _model_name(component, name, translations))
    bare = [t.name for t in kinds.strip_prefixes(checkpoint.tensors).tensors]
    kind = kinds.classify([translate(name, translations) for name in bare])
    parts: Iterable[Sequence[FileFacts]] = (
        [[file] for file in checkpoint.files] if role == "base" else [checkpoint.files]
    )
    placed: list[Placed] = []
    removed: Counter[str] = Counter()
    collisions: list[str] = []
    for files in parts:
        stripped = kinds.strip_prefixes(tensor for file in files for tensor in file.tensors)
        removed.update(stripped.removed)
        collisions += stripped.collisions
        part_kind = kinds.classify([translate(t.name, translations) for t in stripped.tensors])
        component = TOKENIZER if role == "tokenizer" else _COMPONENT.get(part_kind, "")
        placed += [_place(role, component, tensor, stripped.original, name_of) for tensor in stripped.tensors]
    return Given(role, checkpoint, kind, tuple(placed), dict(removed), tuple(collisions))


def _place(role: Role, component: str, tensor: TensorFacts, original: Mapping[str, str], name_of: Naming) -> Placed:
    facts = TensorFacts(original[tensor.name], tensor.dtype, tensor.shape, tensor.file, tensor.begin, tensor.end)
    name = tensor.name
    inside = f"{TOKENIZER}."
    if name.startswith(inside):
        return Placed(role, TOKENIZER, name.removeprefix(inside), facts)
    return Placed(role, component, name_of(component, name), facts)


def _model_name(component: str, name: str, translations: Translations) -> str:
    """A name of any layout as the list of expected tensors has it; one that no layout knows stays as it is."""
    if component == TRANSFORMER:
        ours = any_to_ours(name, translations)
        return (ours_to_training(ours) if ours else None) or translate(name, translations)
    if component == VAE:
        return (vae_name(name) or name).removeprefix("model.")
    if component == TEXT_ENCODER:
        return text_name(name) or name
    return name


def cover(expected: Sequence[ExpectedTensor], given: Sequence[Given]) -> Coverage:
    """Hold all given tensors against all expected ones."""
    wanted = {(tensor.component, tensor.name): tensor for tensor in expected}
    candidates: dict[tuple[str, str], list[Placed]] = defaultdict(list)
    unexpected: list[Placed] = []
    for source in given:
        for placed in source.placed:
            key = (placed.component, placed.name)
            # Without a known world nothing is unexpected: the table then says what the file holds.
            if key in wanted or not wanted:
                candidates[key].append(placed)
            elif key != _TIED:
                unexpected.append(placed)
    order = {"sft": 0, "tokenizer": 1, "base": 2}
    chosen = {key: min(options, key=lambda p: order[p.role]) for key, options in candidates.items()}
    missing = tuple(tensor for key, tensor in wanted.items() if key not in chosen)
    wrong = tuple((wanted[k], p) for k, p in chosen.items() if k in wanted and not wanted[k].fits(p.facts.shape))
    modules = _table(expected, chosen, missing, unexpected, wrong)
    return Coverage(modules, chosen, missing, tuple(unexpected), wrong)


def _table(
    expected: Sequence[ExpectedTensor],
    chosen: Mapping[tuple[str, str], Placed],
    missing: Sequence[ExpectedTensor],
    unexpected: Sequence[Placed],
    wrong: Sequence[tuple[ExpectedTensor, Placed]],
) -> tuple[ModuleCoverage, ...]:
    found_by: dict[str, list[Placed]] = defaultdict(list)
    for (component, name), placed in chosen.items():
        found_by[module_of(component or "unknown", name)].append(placed)
    counts = Counter(tensor.module for tensor in expected)
    lacking = Counter(tensor.module for tensor in missing)
    strange = Counter(module_of(placed.component or "unknown", placed.name) for placed in unexpected)
    misfit = Counter(tensor.module for tensor, _ in wrong)
    return tuple(
        ModuleCoverage(
            module=module,
            expected=counts[module],
            found=len(found_by[module]),
            missing=lacking[module],
            unexpected=strange[module],
            wrong_shape=misfit[module],
            elements=sum(placed.facts.count for placed in found_by[module]),
            dtypes=dict(sorted(Counter(placed.facts.dtype for placed in found_by[module]).items())),
        )
        for module in [*counts, *sorted((set(strange) | set(found_by)) - set(counts))]
    )
