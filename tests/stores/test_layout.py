"""Names: what the format says, and nothing from data ever becomes a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.errors import InputError
from stateplay_rl.stores import layout


def test_names_of_the_format() -> None:
    assert layout.segment_folder(1, "a", 280) == "001-a+280"
    assert layout.parse_segment("001-a+280") == (1, "a", 280)
    assert layout.parse_segment("002-c") == (2, "c", 0)
    assert layout.parse_segment("2-c") is None
    assert layout.checkpoint_folder(12) == "step-12"
    assert layout.checkpoint_step("step-12") == 12
    assert layout.checkpoint_step("step-x") is None
    assert layout.frame_file("abc") == "frames/abc.png"
    assert layout.policy_file("00ff") == "policy/00ff.safetensors"
    assert layout.heldout_folder(8, "old") == "heldout/8-old"
    assert layout.audit_folder("step-4572") == "audit-step-4572"


def test_private_names_are_hidden() -> None:
    temp = layout.temp_name(Path("x/manifest.json"), "1")
    assert layout.is_private(temp.name)
    assert temp.name.startswith(".")
    assert layout.is_private(layout.LOCK)
    assert not layout.is_private("manifest.json")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\\b", "-x", "a b", "ü", "a\n"])
def test_unsafe_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot be a file name"):
        layout.frame_file(name)


def test_segment_kinds_are_words() -> None:
    with pytest.raises(ValueError, match="lower-case"):
        layout.segment_folder(0, "A/..")
