"""The HUD reader on the eight real first frames with their true values; skipped where they are not at hand."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow.parquet as pq
import pytest

from stateplay_rl.evaluation import stress
from stateplay_rl.evaluation.follow import FollowReport, follow
from stateplay_rl.evaluation.hud import ProfileReader
from stateplay_rl.evaluation.series import series_of, series_of_states
from stateplay_rl.stores.pictures import read_picture
from tests.evaluation.hud_painter import SF3, Picture, real_clips

CLIPS = real_clips()
pytestmark = pytest.mark.skipif(not CLIPS.is_dir(), reason="the real clips are not at hand (STATEPLAY_CLIPS)")
FOLDERS = sorted(path for path in CLIPS.glob("*") if path.is_dir()) if CLIPS.is_dir() else []
READER = ProfileReader(SF3)


@lru_cache(maxsize=16)
def load(name: str) -> tuple[Picture, dict[str, np.ndarray]]:
    """First frame and true state columns of a clip."""
    table = pq.read_table(CLIPS / name / "actions.parquet").to_pydict()
    states = {element: np.array(table[element]) for element in SF3.elements}
    return read_picture(CLIPS / name / "first_frame.png"), states


def misread(picture: Picture, states: dict[str, np.ndarray]) -> list[str]:
    found = []
    for name, element in READER.read(picture).elements.items():
        if not element.holds(float(states[name][0]), READER.facts.tolerances[name]):
            found.append(f"{name} is {states[name][0]}: {element}")
    return found


@pytest.mark.parametrize("folder", [f.name for f in FOLDERS])
def test_all_values_at_both_sizes_and_degraded(folder: str) -> None:
    picture, states = load(folder)
    for size, whole in (("native", picture), ("model", stress.cover_size(picture))):
        for name, degrade in stress.degradations().items():
            assert misread(degrade(whole), states) == [], f"{size}, {name}"


@pytest.mark.parametrize("folder", [f.name for f in FOLDERS])
def test_ranges_are_narrow_where_nothing_drains(folder: str) -> None:
    picture, _ = load(folder)
    for whole in (picture, stress.cover_size(picture)):
        wide = {n: (e.low, e.high) for n, e in READER.read(whole).elements.items() if e.high - e.low > 2}
        # Only the clips that end in a defeat begin with a bar that drains.
        assert set(wide) <= ({"p1_hp"} if "lose" in folder else set())


def test_two_hundred_foreign_pictures_have_no_reading() -> None:
    scenes = tuple(load(folder.name)[0] for folder in FOLDERS)
    for kind, picture in stress.foreign_pictures(200, scenes=scenes):
        assert not any(e.readable for e in READER.read(picture).elements.values()), kind


def test_covered_elements_are_not_misread() -> None:
    rng = np.random.default_rng(2)
    refused, tries = 0, 120
    for i in range(tries):
        picture, states = load(FOLDERS[i % len(FOLDERS)].name)
        name = SF3.elements[i % len(SF3.elements)]
        seen = READER.read(stress.covered(picture, SF3, name, rng)).elements[name]
        refused += not seen.readable
        assert not seen.readable or seen.holds(float(states[name][0]), READER.facts.tolerances[name])
    assert refused >= 0.97 * tries


def test_the_true_states_break_no_rule() -> None:
    for folder in FOLDERS:
        _, states = load(folder.name)
        series = series_of_states(states, READER.facts, len(states["timer"]))
        assert series is not None
        assert follow(series).violations == (), folder.name


def edited(picture: Picture, name: str, points: int, drain: int = 0) -> Picture:
    """A real native frame whose bar shows `points`: the scene just above stands in behind the empty part."""
    out, bar = picture.copy(), SF3.bars[name]  # type: ignore[index]
    box = bar.box
    columns = np.arange(box.left, box.right)[:: -1 if bar.fills_from == "right" else 1]
    above = box.top - 6
    for row in range(box.top, box.bottom):
        out[row, columns] = picture[above + row % 2, columns]
        out[row, columns[:points]] = bar.solid[min(1, len(bar.solid) - 1)]
        if bar.drain is not None:
            out[row, columns[points : points + drain]] = bar.drain
    for row in bar.rim_rows:
        out[row, columns] = (picture[above, columns] * 0.5 + np.array((100, 90, 115))).astype(np.uint8)
        out[row, columns[:points]] = (244, 225, 140)
    return out


def followed(frames: list[Picture]) -> FollowReport:
    return follow(series_of(READER.read_video(np.stack(frames)), READER.facts))


@pytest.mark.parametrize("model_size", [False, True])
def test_hits_specials_and_ko_are_found_in_edited_videos(model_size: bool) -> None:
    picture, _ = load(FOLDERS[1].name)  # HP 70 and 100, meters 104 and 76
    frames = []
    for t in range(40):
        hp = 100 if t < 8 else 84 if t < 20 else 70
        drain = max(0, 16 - 2 * (t - 8)) if 8 <= t < 20 else 0
        frame = edited(picture, "p2_hp", hp, drain)
        if t >= 14:
            frame = edited(frame, "p1_meter", 0 if t < 30 else 12)
        frames.append(stress.cover_size(frame) if model_size else frame)
    report = followed(frames)
    assert report.violations == ()
    found = [(event.kind, event.player, event.frame) for event in report.events]
    assert found == [("hit", "p2", 8), ("special", "p1", 14), ("hit", "p2", 20)]
    assert report.events[0].points == pytest.approx(16, abs=2)
    assert report.events[1].points == pytest.approx(104, abs=3)


def test_impossible_changes_are_found_in_edited_videos() -> None:
    picture, _ = load(FOLDERS[1].name)
    other, _ = load(FOLDERS[0].name)
    rises = followed([edited(picture, "p2_hp", 60 if t < 6 else 90) for t in range(12)])
    assert [(v.kind, v.element, v.frame) for v in rises.violations] == [("rise", "p2_hp", 6)]
    leaps = followed([edited(picture, "p1_hp", 150 if t < 6 else 20) for t in range(12)])
    assert [(v.kind, v.element, v.frame) for v in leaps.violations] == [("jump", "p1_hp", 6)]
    blinks = followed([edited(picture, "p1_hp", 30 if t == 5 else 70) for t in range(12)])
    assert [(v.kind, v.element, v.frame) for v in blinks.violations] == [("flicker", "p1_hp", 5)]
    clock = [other.copy() for _ in range(12)]
    for frame in clock[6:]:
        frame[10:33, 174:210] = picture[10:33, 174:210]  # from 45 to 62
    up = followed(clock)
    assert [(v.kind, v.element, v.frame) for v in up.violations] == [("rise", "timer", 6)]
    down = followed(clock[::-1])
    assert [(v.kind, v.element, v.frame) for v in down.violations] == [("jump", "timer", 6)]
