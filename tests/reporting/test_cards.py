"""Groups as cards."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from stateplay_rl.errors import CorruptionError
from stateplay_rl.reporting.blocks import Gallery
from stateplay_rl.reporting.cards import CARD_BYTES, CandidateScore, GroupSet, flat_details, group_cards, spread_choice
from stateplay_rl.reporting.media import MediaTable
from stateplay_rl.reporting.page import gallery_data
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from tests.reporting.fixture_dirs import CLASSES, write_group


@pytest.fixture
def store(tmp_path: Path) -> GroupStore:
    made = GroupStore(tmp_path / "groups")
    for index in range(6):
        write_group(made, f"g{index}", f"c{index}", CLASSES[index % 2], batch=index, samples=2, reference=index != 5)
    return made


def all_groups(store: GroupStore) -> list[StoredGroup]:
    return [store.read(name) for name in store.finished()]


def test_the_choice_takes_every_class_and_spreads_over_batches(store: GroupStore) -> None:
    groups = all_groups(store)
    chosen = spread_choice(groups, 2)
    assert {groups[index].record.mechanics_class for index in chosen} == set(CLASSES[:2])
    assert spread_choice(groups, 99) == list(range(6))
    assert spread_choice(groups, 0) == []


def test_only_chosen_groups_are_embedded_and_missing_parts_are_named(store: GroupStore, tmp_path: Path) -> None:
    scores = {"g0": (CandidateScore(40.0), CandidateScore(None, "failed: no_json"))}
    media = MediaTable(tmp_path / "out", 10_000_000)
    cards = group_cards([GroupSet(store, scores, "groups")], media, 2)
    assert len(cards) == 6
    assert sum(any(video.media for video in card.videos) for card in cards) == 2
    linked = next(card for card in cards if card.videos[1].media is None)
    assert linked.videos[1].href is not None
    assert linked.videos[1].href.startswith("../groups/")
    assert [video.score for video in cards[0].videos] == [None, 40.0, None]
    assert cards[0].videos[2].reason == "failed: no_json"
    assert cards[5].videos[0].reason == "this condition has no real clip"
    assert cards[5].videos[1].reason == "not judged"


def test_media_of_other_groups_is_never_read(store: GroupStore, tmp_path: Path) -> None:
    for path in store.root.glob("*/*.mp4"):
        path.unlink()
    assert len(group_cards([GroupSet(store, {}, "groups")], MediaTable(tmp_path / "out", 10_000_000), 0)) == 6
    with pytest.raises(CorruptionError):
        group_cards([GroupSet(store, {}, "groups")], MediaTable(tmp_path / "out", 10_000_000), 1)


def test_an_embedded_video_is_checked_against_its_hash(store: GroupStore, tmp_path: Path) -> None:
    for path in store.root.glob("*/candidate_0.mp4"):
        path.write_bytes(b"changed")
    with pytest.raises(CorruptionError, match="candidate_0"):
        group_cards([GroupSet(store, {}, "groups")], MediaTable(tmp_path / "out", 10_000_000), 1)


def test_details_are_flattened() -> None:
    details = {"hp": {"error": 0.25, "read": True}, "events": ["hit", 3], "note": None}
    assert flat_details(details) == (
        ("hp.error", "0.250"), ("hp.read", "yes"), ("events", "hit, 3"), ("note", "none"),
    )  # fmt: skip


def test_a_card_names_its_files_with_their_hashes_and_the_alarms_of_its_batch(
    store: GroupStore, tmp_path: Path
) -> None:
    media = MediaTable(tmp_path / "out", 10_000_000)
    cards = group_cards([GroupSet(store, {}, "groups")], media, 0, alarms={2: ("motion",)})
    assert [card.alarms for card in cards] == [(), (), ("motion",), (), (), ()]
    files = dict(cards[0].files)
    assert files["group.json"] == hashlib.sha256((store.root / "g0" / "group.json").read_bytes()).hexdigest()
    latents = (store.root / "g0" / "candidate_1.safetensors").read_bytes()
    assert files["candidate_1.safetensors"] == hashlib.sha256(latents).hexdigest()


def test_the_text_of_cards_is_counted_before_videos_are_embedded(store: GroupStore, tmp_path: Path) -> None:
    """Six cards fill the budget: no video is embedded beside them."""
    cards = group_cards([GroupSet(store, {}, "groups")], MediaTable(tmp_path / "out", 6 * CARD_BYTES), 6)
    assert not any(video.media for card in cards for video in card.videos)


def test_a_card_takes_no_more_text_than_is_kept_free_for_it(store: GroupStore, tmp_path: Path) -> None:
    """With 4 candidates and what a judge says about each, and strings that are shared."""
    details = tuple((f"measure_{n}", f"{n}.5") for n in range(14))
    scores = {name: (CandidateScore(40.123456789, None, details),) * 4 for name in store.finished()}
    cards = group_cards([GroupSet(store, scores, "groups")], MediaTable(tmp_path / "out", 0), 0)
    cards = tuple(replace(card, videos=(*card.videos, *card.videos[1:])) for card in cards)
    text = json.dumps(gallery_data(Gallery("groups", "", cards * 50, "", filters=True)), separators=(",", ":"))
    assert len(text) / len(cards * 50) < CARD_BYTES
