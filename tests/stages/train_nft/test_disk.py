"""What a segment writes, and whether it fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.errors import OutsideError
from stateplay_rl.stages.train_nft import disk, load
from stateplay_rl.stages.train_nft.disk import Need, needs_of, require_room
from stateplay_rl.stages.train_nft.estimates import Evaluations
from stateplay_rl.stages.train_nft.paid_requests import paid_groups
from stateplay_rl.stages.train_nft.segments import SegmentPlan
from stateplay_rl.stages.train_nft.sizes import measure_sizes
from stateplay_rl.stores import layout
from tests.stages.train_nft.helpers import write_tiny_conditions
from tests.stages.train_nft.real_world import SHAPE, STAGE_A, real_world


def needs(out: Path, evaluations: int = 0, plan: SegmentPlan = STAGE_A, **changes: Any) -> dict[str, Need]:
    config = TrainNftConfig(**changes)
    sizes = measure_sizes(config, real_world(), SHAPE)
    paid = paid_groups(config, plan, SHAPE, audited=0, heldout_groups=0)
    return needs_of(config, sizes, plan, Evaluations(evaluations), paid, out)


def test_stage_a_at_the_real_size(tmp_path: Path) -> None:
    """8,000 candidates, 5 checkpoints of live, old and two moments at most, live and old exported; a request keeps 121
    pictures of about 120 kB."""
    found = needs(tmp_path / "run")
    sizes = measure_sizes(TrainNftConfig(), real_world(), SHAPE)
    assert found["groups"].bytes == 8000 * sizes.candidate_bytes + 2000 * sizes.group_bytes
    assert found["held-out groups"].bytes == 0
    assert found["encoded clips"].bytes == 2000 * sizes.encoded_bytes
    assert found["checkpoints"].bytes == 5 * 4 * 4 * sizes.trained
    assert found["policies"].bytes == 2 * 4 * sizes.exported
    assert found["requests"].bytes / 2000 == pytest.approx(121 * 480 * 832 * 0.3, rel=0.02)


def test_what_is_not_written_takes_nothing(tmp_path: Path) -> None:
    without = needs(tmp_path / "run", judge={"name": "plug_in:Judge"}, anchors={"fm_real": 0.0, "transition_real": 0.0})
    assert without["encoded clips"].bytes == 0
    assert "requests" not in without
    plain = needs(tmp_path / "run")
    averaged = needs(tmp_path / "run", evaluations=3, evaluation_average={"decay": 0.9}, heldout={"conditions": 8})
    assert averaged["checkpoints"].bytes == plain["checkpoints"].bytes * 5 / 4
    assert averaged["policies"].bytes == plain["policies"].bytes * 3 / 2
    assert averaged["held-out groups"].bytes > 0


def test_each_part_lies_where_it_goes(tmp_path: Path) -> None:
    folders = {"encoded": tmp_path / "encoded", "judge": {"requests": {"folder": tmp_path / "requests"}}}
    found = needs(tmp_path / "run", **folders)
    assert {name: need.place.name for name, need in found.items()} == {
        **dict.fromkeys(("groups", "held-out groups", "checkpoints", "policies"), "run"),
        "encoded clips": "encoded",
        "requests": "requests",
    }


def test_places_on_one_disk_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(disk, "require_space", lambda path, needed: asked.append(needed))
    require_room({"a": Need(tmp_path / "new" / "run", 10.0), "b": Need(tmp_path / "other", 5.0)})
    assert asked == [15]
    monkeypatch.undo()
    with pytest.raises(OutsideError, match="not enough space"):
        require_room({"a": Need(tmp_path / "run", 1e18)})


@pytest.mark.parametrize(
    ("begun", "begins", "refused"), [(False, False, True), (True, False, False), (True, True, True)]
)
def test_a_segment_is_refused_before_it_begins_and_never_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool, begins: bool, refused: bool
) -> None:
    """An extension and stage C begin on a run that has checkpoints."""
    conditions = write_tiny_conditions(tmp_path)
    run = tmp_path / "run"
    if begun:
        (run / layout.CHECKPOINTS_FOLDER).mkdir(parents=True)
    plan = SegmentPlan("a", 0, 0, 10**9, 28, begins=begins)
    if refused:
        with pytest.raises(OutsideError, match="not enough space"):
            load.require_disk(TrainNftConfig(), real_world(), conditions, plan, run)
    else:
        load.require_disk(TrainNftConfig(), real_world(), conditions, plan, run)
