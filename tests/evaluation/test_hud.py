"""The HUD reader on painted frames with known values: any value, any size, refused where nothing can be known."""

from __future__ import annotations

import numpy as np
import pytest

from stateplay_rl.errors import InputError
from stateplay_rl.evaluation import stress
from stateplay_rl.evaluation.hud import HudReading, ProfileReader, readable_share
from tests.evaluation.hud_painter import SF3, paint, scene

READER = ProfileReader(SF3)
BASE = {"p1_hp": 96.0, "p2_hp": 41.0, "p1_meter": 61.0, "p2_meter": 20.0, "timer": 38.0}


def misses(reading: HudReading, values: dict[str, float]) -> list[tuple[str, float, object]]:
    """Elements that are unreadable or off."""
    tolerances = READER.facts.tolerances
    return [
        (name, true, reading.elements[name])
        for name, true in values.items()
        if not reading.elements[name].holds(true, tolerances[name])
    ]


@pytest.mark.parametrize("seed", range(6))
def test_random_values_are_read_at_both_sizes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = {
        "p1_hp": float(rng.integers(3, 161)),
        "p2_hp": float(rng.integers(3, 161)),
        "p1_meter": float(rng.integers(3, 105)),
        "p2_meter": float(rng.integers(3, 97)),
        "timer": float(rng.integers(0, 100)),
    }
    picture = paint(values, seed=seed)
    for shown in (picture, stress.cover_size(picture)):
        reading = READER.read(shown)
        assert misses(reading, values) == []
        assert all(e.high == e.low for e in reading.elements.values()), "nothing drains"


@pytest.mark.parametrize("value", range(0, 100, 11))
def test_every_digit_in_both_places(value: int) -> None:
    tens_and_ones = [value, (value + 9) % 100]
    for shown in tens_and_ones:
        seen = READER.read(paint({**BASE, "timer": shown})).elements["timer"]
        assert (seen.low, seen.high) == (shown, shown)


def test_a_draining_part_widens_the_range_and_nothing_else() -> None:
    reading = READER.read(paint({**BASE, "p2_hp": 60.0}, {"p2_hp": 25.0}))
    seen = reading.elements["p2_hp"]
    assert seen.low == pytest.approx(60, abs=1)
    assert seen.high == pytest.approx(85, abs=1)
    assert seen.holds(72, 2)
    assert not seen.holds(90, 2)
    assert not seen.holds(55, 2)
    assert reading.elements["p1_hp"].low == reading.elements["p1_hp"].high


@pytest.mark.parametrize("name", sorted(stress.degradations()))
def test_degraded_pictures_are_read(name: str) -> None:
    degrade = stress.degradations()[name]
    picture = stress.cover_size(paint(BASE, seed=3))
    assert misses(READER.read(degrade(picture)), BASE) == []


def test_far_degraded_pictures_are_refused_rather_than_misread() -> None:
    picture = paint(BASE, seed=3)
    for radius in (2.0, 3.0, 5.0, 9.0):
        reading = READER.read(stress.blur(picture, radius))
        wrong = [miss for miss in misses(reading, BASE) if reading.elements[miss[0]].readable]
        assert wrong == []


def test_foreign_pictures_have_no_reading() -> None:
    scenes = (paint(BASE, seed=1), paint({**BASE, "p1_hp": 160.0}, seed=2))
    for kind, picture in stress.foreign_pictures(60, seed=4, scenes=scenes):
        reading = READER.read(picture)
        assert [name for name, e in reading.elements.items() if e.readable] == [], kind
        assert reading.place is None


@pytest.mark.parametrize("name", SF3.elements)
def test_a_covered_element_is_unreadable_and_the_others_are_not_wrong(name: str) -> None:
    rng = np.random.default_rng(7)
    picture = paint(BASE, seed=5)
    refused = 0
    for _ in range(12):
        reading = READER.read(stress.covered(picture, SF3, name, rng))
        wrong = [miss for miss in misses(reading, BASE) if reading.elements[miss[0]].readable]
        assert wrong == []
        refused += not reading.elements[name].readable
    assert refused >= 11
    assert READER.read(picture).elements[name].readable, "it is the cover that makes it unreadable"


@pytest.mark.parametrize("colour", [(0, 0, 0), (128, 128, 128), (223, 182, 41), (60, 40, 30)])
@pytest.mark.parametrize("name", ["p1_meter", "p2_meter"])
def test_a_cover_that_leaves_a_meters_outer_lines_in_view_is_found(name: str, colour: tuple[int, int, int]) -> None:
    """Five lines lie below a meter: those that are still there must not answer for the covered ones."""
    box = SF3.bars[name].box  # type: ignore[index]
    start = box.left + int(0.3 * box.width) if SF3.bars[name].fills_from == "right" else box.left + 1  # type: ignore[index]
    for seed in range(4):
        picture = paint(BASE, seed=seed)
        assert READER.read(picture).elements[name].readable, "it is the cover that makes it unreadable"
        picture[box.top - 2 : box.bottom + 2, start : start + int(0.7 * box.width)] = colour
        for shown in (picture, stress.cover_size(picture)):
            assert not READER.read(shown).elements[name].readable, READER.read(shown).elements[name]


@pytest.mark.parametrize("width", [5, 6, 7, 8])
@pytest.mark.parametrize("colour", [(170, 95, 15), (248, 200, 60), (246, 120, 20)])
def test_a_pillar_over_a_digit_is_no_1(width: int, colour: tuple[int, int, int]) -> None:
    """A cover cut from a scene may have the ink's hue: an orange post over the 9 of 95 was read as 15."""
    assert SF3.timer is not None
    left, top = SF3.timer.cells[0]
    for value in (95, 35, 20):
        for column in range(0, 12, 2):
            picture = paint({**BASE, "timer": float(value)}, seed=value)
            picture[top - 5 : top + 23, left - 2 : left + 16] = (60, 48, 30)
            picture[top - 5 : top + 23, left + column : left + column + width] = colour
            seen = READER.read(picture).elements["timer"]
            assert not seen.readable, (value, column, seen)


def test_a_scene_without_hud_is_unreadable() -> None:
    reading = READER.read(scene(8))
    assert reading.place is None
    assert not reading.readable
    assert reading.unreadable == SF3.elements
    assert readable_share([reading]) == 0.0
    assert readable_share([reading, READER.read(paint(BASE))]) == pytest.approx(0.5)
    assert readable_share([]) == 0.0


def test_a_video_is_read_as_its_frames_also_when_the_hud_jumps() -> None:
    frames = [stress.shifted(paint(BASE, seed=2), 3 * (t % 2), -2 * (t % 3)) for t in range(6)]
    frames[3] = scene(1)
    video = READER.read_video(np.stack(frames))
    for t, (seen, frame) in enumerate(zip(video, frames, strict=True)):
        alone = READER.read(frame)
        assert seen.unreadable == alone.unreadable, t
        for name, element in seen.elements.items():
            if element.low is not None:
                assert element.low == pytest.approx(alone.elements[name].low, abs=1.0)


@pytest.mark.parametrize("shape", [(224, 384), (224, 384, 4), (3, 224, 384)])
def test_what_is_no_picture_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="RGB"):
        READER.read(np.zeros(shape, np.uint8))
    with pytest.raises(InputError, match="RGB"):
        READER.read(np.zeros((224, 384, 3), np.float32))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(1, 1), (20, 30), (48, 4000), (4000, 48), (100, 100)])
def test_odd_sizes_are_unreadable_not_an_error(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    assert not READER.read(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).readable
