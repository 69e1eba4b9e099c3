"""Segments: names, order, one open at a time, groups of open and sealed ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.errors import CorruptionError, InputError, OutputError, UsageError
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.manifest import OutputDirectory, read_manifest
from stateplay_rl.stores.segments import group_hashes, list_segments, next_segment, open_segment, read_groups
from tests.stores.helpers import Config, group_record, latents, open_out, pictures


def add_group(segment: OutputDirectory, group_id: str) -> None:
    store = GroupStore(segment.path / "groups")
    store.write(group_record(group_id, seeds=(1,)), pictures(1)[0], [latents(0)], [pictures(5)])


def begin(run: OutputDirectory, kind: str, extension: int = 0, seed: int = 1) -> OutputDirectory:
    return open_segment(run, kind, extension=extension, config=Config(seed=seed), inputs={})


def test_a_run_is_a_chain_of_sealed_segments(tmp_path: Path) -> None:
    run = open_out(tmp_path / "run", schema="run", command="train-nft")
    for number, (kind, extension) in enumerate([("a", 0), ("a", 280), ("c", 0)]):
        segment = begin(run, kind, extension)
        add_group(segment, f"g-{number}")
        segment.seal()
    assert [s.path.name for s in list_segments(run.path)] == ["000-a", "001-a+280", "002-c"]
    assert [(s.kind, s.extension, s.sealed) for s in list_segments(run.path)] == [
        ("a", 0, True), ("a", 280, True), ("c", 0, True),
    ]  # fmt: skip
    assert [g.record.group_id for g in read_groups(run.path)] == ["g-0", "g-1", "g-2"]
    manifest = run.seal()
    assert "segments/001-a+280/manifest.json" in manifest.files
    assert read_manifest(tmp_path / "run", verify_files=True)


def test_an_open_segment_goes_on_and_blocks_another(tmp_path: Path) -> None:
    with open_out(tmp_path / "run", schema="run") as run:
        begin(run, "a").close()
        with pytest.raises(OutputError, match=r"000-a is still open, 001-c cannot begin"):
            next_segment(run.path, "c")
        with pytest.raises(UsageError, match="seed: was 1, now 2"):
            begin(run, "a", seed=2)
        with begin(run, "a") as again:
            assert again.resumed
            again.seal()
        assert next_segment(run.path, "a", 280).name == "001-a+280"


def test_segments_need_the_runs_lock(tmp_path: Path) -> None:
    run = open_out(tmp_path / "run", schema="run")
    run.close()
    with pytest.raises(ValueError, match="lock"):
        begin(run, "a")


def test_finished_groups_of_an_open_segment_are_read_with_their_hashes(tmp_path: Path) -> None:
    with open_out(tmp_path / "run", schema="run") as run:
        with begin(run, "a") as segment:
            add_group(segment, "g-1")
            (segment.path / "groups" / "g-2").mkdir()
            groups = list(read_groups(run.path))
        assert [g.record.group_id for g in groups] == ["g-1"]
        assert group_hashes(run.path) == {"g-1": groups[0].sha256}


def test_a_changed_group_of_a_sealed_segment_is_corrupt(tmp_path: Path) -> None:
    with open_out(tmp_path / "run", schema="run") as run:
        segment = begin(run, "a")
        add_group(segment, "g-1")
        segment.seal()
        file = segment.path / "groups" / "g-1" / "group.json"
        file.write_text(file.read_text().replace('"batch": 0', '"batch": 1'))
        with pytest.raises(CorruptionError, match=r"g-1/group\.json"):
            list(read_groups(run.path))


@pytest.mark.parametrize("names", [["001-a"], ["000-a", "002-a"], ["junk"], ["000-a", "001-a"]])
def test_gaps_strangers_and_open_middles_are_corrupt(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / "segments" / name).mkdir(parents=True)
    with pytest.raises(CorruptionError):
        list_segments(tmp_path)


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run"):
        list(read_groups(tmp_path))
