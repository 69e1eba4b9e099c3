"""The protocol: its hash covers what a judge sees; the prompt names nothing that it must not."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stateplay_rl.config.judging import ProtocolConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.judges.protocol import JudgingProtocol, labels_for, shuffled_order

CLASSES = ("normal", "macro_success", "macro_fail", "macro", "result_win", "result_lose")
STATE_COLUMNS = ("p1_hp", "p2_hp", "p1_meter", "p2_meter", "macro_ready", "timer")


def examples(folder: Path, shade: int = 0) -> tuple[Path, ...]:
    files = tuple(folder / f"example_{n}.png" for n in range(3))
    for number, file in enumerate(files):
        Image.fromarray(np.full((16, 16, 3), 40 * number + shade, np.uint8)).save(file)
    return files


def test_every_setting_is_another_protocol(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    configs = [
        ProtocolConfig(),
        ProtocolConfig(include_prompt=False),
        ProtocolConfig(frames=12),
        ProtocolConfig(longest_side=640),
        ProtocolConfig(jpeg_quality=80),
        ProtocolConfig(shuffle_seed=1),
        ProtocolConfig(example_images=examples(first)),
        ProtocolConfig(example_images=examples(second, shade=9)),
    ]
    assert len({JudgingProtocol(config).sha256 for config in configs}) == len(configs)


def test_where_the_example_images_lie_does_not_matter(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, two = (JudgingProtocol(ProtocolConfig(example_images=examples(tmp_path / n))) for n in ("a", "b"))
    assert one.sha256 == two.sha256


def test_the_mode_does_not_change_what_is_seen(tmp_path: Path) -> None:
    files = examples(tmp_path)
    modes = [ProtocolConfig(mode=m, example_images=files) for m in ("development", "production")]
    assert len({JudgingProtocol(config).sha256 for config in modes}) == 1


def test_the_prompt_names_no_class_and_no_state_column() -> None:
    words = set(re.findall(r"[a-z0-9_]+", JudgingProtocol(ProtocolConfig()).template.lower()))
    assert words.isdisjoint(CLASSES + STATE_COLUMNS)


def test_the_instruction_asks_for_exactly_the_labels() -> None:
    text = JudgingProtocol(ProtocolConfig()).instruction(("A", "B"))
    assert "exactly the letters A, B:" in text
    assert '{"scores": {"A": 0..100, "B": 0..100}' in text
    assert "$" not in text


def test_orders_are_permutations_that_differ_between_groups_and_repeat() -> None:
    orders = [shuffled_order(f"g{n}", 4, 0) for n in range(400)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert orders == [shuffled_order(f"g{n}", 4, 0) for n in range(400)]
    assert len(set(orders)) == 24
    assert shuffled_order("g0", 4, 1) != shuffled_order("g0", 4, 0) or shuffled_order("g1", 4, 1) != orders[1]
    # Each candidate stands first in about a quarter of the groups (100 of 400, deviation 8.7).
    for candidate in range(4):
        assert 65 <= sum(order[0] == candidate for order in orders) <= 135


def test_labels() -> None:
    assert labels_for(4) == ("A", "B", "C", "D")
    with pytest.raises(UsageError):
        labels_for(27)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_three_example_images_or_none(count: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="example_images"):
        ProtocolConfig(example_images=(tmp_path / "a.png",) * count)


@pytest.mark.parametrize("settings", [{}, {"frames": 12}])
def test_production_refuses_what_development_allows(settings: dict[str, int], tmp_path: Path) -> None:
    ProtocolConfig(**settings)
    more = {"example_images": examples(tmp_path)} if settings else {}
    with pytest.raises(ValueError, match="production"):
        ProtocolConfig(mode="production", **settings, **more)
