"""People's scores, read back strictly: a missing score stays missing, and a file of another set is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.errors import InputError
from stateplay_rl.reporting.label_set import VERSION, LabelKey, read_key
from stateplay_rl.reporting.numbers import finite
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_bytes
from stateplay_rl.stores.foreign import parse_json

_HINT = "save it again from the blind page"


@dataclass(frozen=True)
class Labels:
    """One person's scores of one set.

    Attributes:
        scores: points by item; items that the person could not tell are left out.
        unsure: items that the person looked at and could not tell.
        file_sha256: of the file that they were read from.
    """

    labeller: str
    scores: Mapping[str, float]
    unsure: tuple[str, ...]
    file: str
    file_sha256: str


@dataclass(frozen=True)
class LabelledSet:
    """A set with everybody's scores."""

    key: LabelKey
    people: tuple[Labels, ...]


def read_labelled_sets(label_files: Sequence[Path], key_file: Path | None) -> tuple[LabelledSet, ...]:
    """All files of labels with their keys, gathered by set.

    Args:
        key_file: the key of all files; None looks beside each.

    Raises:
        InputError: a file is missing, is no file of labels, or belongs to another set than its key.
        CorruptionError: a damaged key.
    """
    sets: dict[str, tuple[LabelKey, list[Labels]]] = {}
    for file in label_files:
        if not file.is_file():
            raise InputError(f"there is no file of labels {file}", "give what the blind page saved: labels-NAME.json")
        key = read_key(key_file if key_file is not None else file.parent / layout.LABEL_KEY)
        labels = read_labels(file, key)
        sets.setdefault(key.set_sha256, (key, []))[1].append(labels)
    return tuple(LabelledSet(key, tuple(people)) for key, people in sets.values())


def read_labels(file: Path, key: LabelKey) -> Labels:
    """One person's file.

    Raises:
        InputError: it names the file and the field.
    """
    try:
        data = file.read_bytes()
        value = parse_json(data)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is no readable file of labels: {error}", _HINT) from error
    if not isinstance(value, dict) or not isinstance(value.get("labels"), dict):
        raise InputError(f"{file}: field 'labels' is missing", _HINT)
    if value.get("version") != VERSION:
        raise InputError(f"{file}: version {value.get('version')!r}, this program reads {VERSION}", _HINT)
    if value.get("set_sha256") != key.set_sha256:
        raise InputError(f"{file} belongs to another set of videos than its key", "give the right --label-key")
    scores: dict[str, float] = {}
    unsure: list[str] = []
    for name, label in value["labels"].items():
        if name not in key.items:
            raise InputError(f"{file}: labels.{name}: the set has no such video", _HINT)
        if not isinstance(label, dict) or "score" not in label:
            raise InputError(f"{file}: labels.{name} holds no 'score'", _HINT)
        score = finite(label["score"])
        if label["score"] is None:
            unsure.append(name)
        elif score is None or not 0 <= score <= 100:
            raise InputError(f"{file}: labels.{name}.score is {label['score']!r}, not a number of 0..100", _HINT)
        else:
            scores[name] = score
    labeller = str(value.get("labeller") or file.stem)
    return Labels(labeller, scores, tuple(unsure), file.name, sha256_bytes(data))
