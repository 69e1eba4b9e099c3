"""Requests: built by the judge's builder, read back from the store as they were sent, with parts hidden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateplay_rl.config.judging import ProtocolConfig
from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.judges import payload as requests
from stateplay_rl.judges.protocol import JudgingProtocol
from stateplay_rl.reward_model.payload import (
    GroupPayload,
    ImagePart,
    TextPart,
    build_from_group,
    read_request,
    without_actions,
    without_reference,
)
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from tests.reward_model.arena_groups import SHOWN, conditions, write_group
from tests.reward_model.small_groups import payload_of

PROTOCOL = JudgingProtocol(ProtocolConfig(frames=SHOWN))


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> StoredGroup:
    return write_group(GroupStore(tmp_path_factory.mktemp("groups")), conditions(1, 4)[0])


def stored(folder: Path, group: StoredGroup) -> Path:
    """A request store with this group's request, written as the paid judge writes it."""
    images = folder / layout.REQUEST_IMAGES_FOLDER
    images.mkdir(parents=True)
    (folder / layout.REQUEST_RAW_FOLDER).mkdir()

    def keep(jpeg: bytes) -> str:
        part = ImagePart.of(jpeg)
        (images / f"{part.sha256}.jpg").write_bytes(jpeg)
        return part.sha256

    order = (2, 0, 3, 1)
    built = requests.build_payload(group, PROTOCOL, requests.RequestFields({"model": "m"}), order, keep)
    raw = {
        "group_id": group.record.group_id,
        "labels": list(built.labels),
        "order": list(built.order),
        "request": built.body,
        "answer": "{}",
    }
    (folder / layout.REQUEST_RAW_FOLDER / "r-1.json").write_text(json.dumps(raw))
    return folder


def test_a_stored_request_is_read_back_as_it_was_sent(group: StoredGroup, tmp_path: Path) -> None:
    found = read_request(stored(tmp_path / "requests", group), "r-1", group.record.group_id)
    assert found == build_from_group(group, PROTOCOL, (2, 0, 3, 1))
    assert len(found.images) == 1 + 5 * SHOWN
    assert found.by_candidate(found.by_label((10.0, 20.0, 30.0, 40.0))) == (10.0, 20.0, 30.0, 40.0)
    assert found.by_label((10.0, 20.0, 30.0, 40.0)) == (30.0, 10.0, 40.0, 20.0)


def test_faults_of_a_store_are_named(group: StoredGroup, tmp_path: Path) -> None:
    folder = stored(tmp_path / "requests", group)
    name = group.record.group_id
    with pytest.raises(InputError, match="r-2"):
        read_request(folder, "r-2", name)
    with pytest.raises(CorruptionError, match="other"):
        read_request(folder, "r-1", "other")
    picture = next((folder / layout.REQUEST_IMAGES_FOLDER).iterdir())
    picture.write_bytes(picture.read_bytes() + b"x")
    with pytest.raises(CorruptionError, match="does not match its name"):
        read_request(folder, "r-1", name)
    picture.unlink()
    with pytest.raises(CorruptionError, match="cannot be read"):
        read_request(folder, "r-1", name)
    (folder / layout.REQUEST_RAW_FOLDER / "r-1.json").write_text('{"group_id": 1}')
    with pytest.raises(CorruptionError, match="damaged"):
        read_request(folder, "r-1", name)


def test_without_an_order_the_protocol_shuffles(group: StoredGroup) -> None:
    first, second = (build_from_group(group, PROTOCOL) for _ in range(2))
    assert first == second
    other = build_from_group(group, JudgingProtocol(ProtocolConfig(frames=SHOWN, shuffle_seed=1)))
    assert sorted(other.order) == [0, 1, 2, 3]


def test_the_reference_is_hidden_with_its_pictures(group: StoredGroup) -> None:
    whole = build_from_group(group, PROTOCOL)
    hidden = without_reference(whole)
    assert hidden is not None
    assert len(hidden.images) == len(whole.images) - SHOWN
    kept = [part.text for part in hidden.parts if isinstance(part, TextPart)]
    assert requests.REFERENCE not in kept
    assert not any(text.startswith("Reference, frame") for text in kept)
    assert sum(text.startswith("Candidate") for text in kept) == 4 * (1 + SHOWN)
    assert without_reference(hidden) is None


def test_the_actions_are_hidden_and_nothing_else(group: StoredGroup) -> None:
    whole = build_from_group(group, PROTOCOL)
    hidden = without_actions(whole)
    assert hidden is not None
    changed = [(a, b) for a, b in zip(whole.parts, hidden.parts, strict=True) if a != b]
    assert len(changed) == 1
    assert changed[0][1] == TextPart(f"{requests.ACTIONS}\n")
    assert hidden.images == whole.images
    assert without_actions(payload_of(1)) is None


def test_labels_must_name_every_candidate_once() -> None:
    with pytest.raises(ValueError, match="once each"):
        GroupPayload((), ("A", "B"), (0, 0))
