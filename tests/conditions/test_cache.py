"""The cache of outcomes: what it gives back, and what it rightly forgets."""

from __future__ import annotations

import os
from pathlib import Path

from stateplay_rl.conditions.cache import RowCache, row_key
from stateplay_rl.conditions.examine import Outcome, examine_row
from stateplay_rl.conditions.source import Source, read_csv
from tests.conditions.clip_factory import arena_config, make_rows, write_csv


def examined(root: Path, out: Path) -> tuple[Source, dict[int, str], list[Outcome]]:
    source = read_csv(write_csv(root / "metadata.csv", make_rows(root, 3)))
    for name in ("frames", "actions", "states"):
        (out / name).mkdir(parents=True)
    keys = {row.row: row_key(row, source.data_root) for row in source.rows}
    rules = arena_config().clip
    outcomes = [examine_row(row, keys[row.row], source.data_root, rules, out) for row in source.rows]
    with RowCache(out) as cache:
        for outcome in outcomes:
            cache.append(outcome)
    return source, keys, outcomes


def test_what_was_stored_comes_back(tmp_path: Path) -> None:
    source, keys, outcomes = examined(tmp_path, tmp_path / "out")
    assert RowCache(tmp_path / "out").load(keys, source.rows) == {o.row: o for o in outcomes}
    assert RowCache(tmp_path / "elsewhere").load(keys, source.rows) == {}


def test_half_a_line_is_forgotten_and_the_next_one_is_not(tmp_path: Path) -> None:
    source, keys, outcomes = examined(tmp_path, tmp_path / "out")
    log = tmp_path / "out" / "work" / "rows.jsonl"
    log.write_bytes(log.read_bytes()[:-50] + b"\x00\x00")
    cache = RowCache(tmp_path / "out")
    assert set(cache.load(keys, source.rows)) == {1, 2}
    with cache:
        cache.append(outcomes[2])
    assert set(RowCache(tmp_path / "out").load(keys, source.rows)) == {1, 2, 3}


def test_changed_sources_are_examined_again(tmp_path: Path) -> None:
    source, keys, _ = examined(tmp_path, tmp_path / "out")
    os.utime(tmp_path / "clip001" / "video.mp4", ns=(1, 1))
    changed = {row.row: row_key(row, source.data_root) for row in source.rows}
    assert [row for row in keys if keys[row] != changed[row]] == [2]
    assert set(RowCache(tmp_path / "out").load(changed, source.rows)) == {1, 3}


def test_damaged_or_missing_artefacts_are_made_again(tmp_path: Path) -> None:
    source, keys, outcomes = examined(tmp_path, tmp_path / "out")
    first, second, _ = (outcome.condition for outcome in outcomes)
    assert first is not None
    assert second is not None
    picture = tmp_path / "out" / f"frames/{first.condition_id}.png"
    picture.write_bytes(bytes(picture.stat().st_size))  # what a power loss may leave
    (tmp_path / "out" / f"actions/{second.condition_id}.parquet").unlink()
    assert set(RowCache(tmp_path / "out").load(keys, source.rows)) == {3}
