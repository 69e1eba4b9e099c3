"""Profiles: what is refused, and the overlay helper."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from stateplay_rl.errors import UsageError
from stateplay_rl.evaluation.draw_profile import describe, draw_profile, main
from stateplay_rl.evaluation.hud import ProfileReader
from stateplay_rl.evaluation.profile import FOLDER, load_profile, packaged_profiles
from tests.evaluation.hud_painter import FULL, SF3, paint, scene


def test_every_packaged_profile_loads() -> None:
    assert "sf3" in packaged_profiles()
    for name in packaged_profiles():
        assert load_profile(name).game == name


def test_a_profile_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text((FOLDER / "sf3.yaml").read_text().replace("game: sf3", "game: mine"))
    assert load_profile(str(file)).game == "mine"
    with pytest.raises(UsageError, match="no HUD profile"):
        load_profile("chess")


def values() -> Any:
    return copy.deepcopy(yaml.safe_load((FOLDER / "sf3.yaml").read_text()))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("bars", "p1_hp", "box", "width"), 4000, "reaches outside"),
        (("bars", "p1_hp", "frame", "last_column"), 8, "past first_column"),
        (("bars", "p1_hp", "frame", "first_column"), 2, "within the box"),
        (("bars", "p1_hp", "fills_from"), "top", "fills_from"),
        (("bars", "p3_hp"), {}, "p3_hp"),
        (("bars",), {}, "at least one bar"),
        (("timer", "glyphs", "3"), ["#"], "rows of"),
        (("timer", "cells"), [[380, 13]], "outside the picture"),
        (("timer", "glyphs"), {"1": ["#"]}, "0-9"),
        (("colour",), 1, "unknown config key"),
        (("game",), "No Spaces", "game"),
    ],
)
def test_wrong_profiles_are_refused(tmp_path: Path, path: tuple[str, ...], value: object, message: str) -> None:
    profile = values()
    node = profile
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(profile))
    with pytest.raises(UsageError, match=message):
        load_profile(str(file))


def test_one_sided_frames_and_missing_ends_are_refused(tmp_path: Path) -> None:
    profile = values()
    profile["bars"]["p1_hp"]["frame"]["rows"] = profile["bars"]["p1_hp"]["frame"]["rows"][:2]
    file = tmp_path / "one_sided.yaml"
    file.write_text(yaml.safe_dump(profile))
    with pytest.raises(UsageError, match="both above and below"):
        load_profile(str(file))
    profile = values()
    for bar in profile["bars"].values():
        bar["frame"].pop("ends", None)
    file = tmp_path / "no_ends.yaml"
    file.write_text(yaml.safe_dump(profile))
    with pytest.raises(UsageError, match="at least two frame ends"):
        load_profile(str(file))


def test_the_overlay_shows_frame_lines_and_numbers(tmp_path: Path) -> None:
    frame = paint({**FULL, "p1_hp": 80.0}, {"p1_hp": 30.0})
    drawn = draw_profile(frame, SF3, scale=2)
    assert drawn.width == 2 * SF3.width
    assert drawn.height > 2 * SF3.height
    plain = np.asarray(Image.fromarray(frame).resize((768, 448), Image.Resampling.NEAREST))
    changed = (np.asarray(drawn)[:448] != plain).any(axis=2)
    assert changed[30:46].any()
    assert not changed[120:380].any(), "nothing is drawn away from the HUD"
    words = describe(ProfileReader(SF3).read(frame))
    assert any("drains" in line for line in words)
    assert "no HUD found" in describe(ProfileReader(SF3).read(scene(1)))[0]
    with pytest.raises(ValueError, match="scale"):
        draw_profile(frame, SF3, scale=0)


def test_the_overlay_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame, out = tmp_path / "frame.png", tmp_path / "overlay.png"
    Image.fromarray(paint(FULL)).save(frame)
    assert main([str(frame), str(frame), "--out", str(out), "--scale", "1"]) == 0
    assert "p1_hp: 160" in capsys.readouterr().out
    assert Image.open(out).width == SF3.width
    text = tmp_path / "text.png"
    text.write_text("no picture")
    assert main([str(text), "--out", str(out)]) == 3
    assert main([str(frame), "--profile", "chess", "--out", str(out)]) == 2
    assert main([str(frame), "--out", str(tmp_path / "no" / "such" / "folder.png")]) == 3
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    assert errors.count("error:") == 3
