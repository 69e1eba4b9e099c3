"""`sprl verify actions` through the command line, on made-up clips of a scene that drifts against the walk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stateplay_rl.cli.main import main
from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.config.conditions import ConditionsConfig
from stateplay_rl.stores.conditions import ConditionRecord, write_condition_files, write_conditions
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.video import encode_mp4
from tests.stores.helpers import group_record, open_out

WINDOWS, ROWS, HEIGHT, WIDTH = 4, 10, 48, 96
RIGHT = BUTTONS.index("RIGHT")


def held(seed: int) -> np.ndarray:
    """Every second window walks to the right."""
    walks = np.arange(WINDOWS) % 2 == seed % 2
    buttons = np.zeros((WINDOWS * ROWS, len(BUTTONS)), np.int32)
    buttons[np.repeat(walks, ROWS), RIGHT] = 1
    return buttons


def video(seed: int, obeys: bool = True) -> np.ndarray:
    """The scene drifts by a pixel a frame while RIGHT is held; else, or without obedience, it stands."""
    coarse = np.random.default_rng(seed).integers(0, 256, (HEIGHT, 60, 1)).repeat(4, axis=1)
    walks = held(seed)[:, RIGHT] * int(obeys)
    places = np.concatenate([[0], np.cumsum(walks[1:])])
    frames = np.stack([coarse[:, 40 + place : 40 + place + WIDTH] for place in places])
    return np.repeat(frames, 3, axis=-1).astype(np.uint8)


def write_clips(root: Path, count: int, **preset: Any) -> Path:
    (root / "data").mkdir(parents=True)
    records = []
    with open_out(root / "conditions", schema="conditions", config=ConditionsConfig(**preset)) as out:
        for k in range(count):
            frames, buttons = video(k), held(k)
            encode_mp4(root / "data" / f"{k}.mp4", frames, 20.0)
            write_condition_files(out, f"c{k}", frames[0], buttons, buttons, {})
            records.append(
                ConditionRecord(
                    condition_id=f"c{k}", clip=f"{k}.mp4", prompt="p", mechanics_class="normal", distribution="normal",
                    npc_category="", strategy="", fps=20.0, frames=len(frames), latent_frames=11,
                    action_rows=len(buttons), action_bin_edges=((0, 1),), first_frame_sha256="", actions_sha256="",
                    cluster_id=k, pool="pass", student_split="train", order=k, warnings=(),
                )
            )  # fmt: skip
        write_conditions(out, records)
        out.seal(extra={"data_root": str(root / "data")})
    return root / "conditions"


def write_groups(root: Path, obeys: bool) -> Path:
    with open_out(root / "groups", schema="groups") as out:
        groups = GroupStore(root / "groups")
        frames = video(0, obeys)
        record = group_record(
            "g-0", seeds=(1,), condition_id="c0", frames=len(frames), buttons=tuple(map(tuple, held(0).tolist()))
        )
        groups.write(record, frames[0], [torch.zeros(4, 2, 2, 4, dtype=torch.bfloat16)], [frames])
        out.seal()
    return root / "groups"


def verify(*arguments: object, out: Path) -> tuple[int, dict[str, Any]]:
    code = main(["verify", "actions", *map(str, arguments), "--out", str(out)])
    file = out / "verify.json"
    return code, json.loads(file.read_text()) if file.is_file() else {}


@pytest.mark.parametrize("obeys", [True, False])
def test_a_probe_that_tells_may_speak_and_the_others_are_withheld(tmp_path: Path, obeys: bool) -> None:
    conditions = write_clips(tmp_path, 24)
    code, record = verify(conditions, "--groups", write_groups(tmp_path, obeys), out=tmp_path / "verify")
    assert code == 4, "attacks and walks to the left are never commanded here"
    status = {line["name"]: line["status"] for line in record["lines"]}
    assert status == {
        "attack": "failed",
        "walk_left": "failed",
        "walk_right": "passed",
        "walk_right in groups": "passed",
    }
    measures = record["measures"]
    assert measures["calibrations"]["walk_right"]["accuracy_low"] > 0.9
    assert "are needed" in measures["calibrations"]["attack"]["reason"]
    said = measures["groups"]["walk_right"]
    assert (said["right"], said["wrong"]) == ((2, 0) if obeys else (0, 2))


def test_what_cannot_be_calibrated_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "verify"
    empty = write_clips(tmp_path / "empty", 0)
    assert verify(empty, out=out) == (3, {})
    assert "has a real clip" in capsys.readouterr().err
    assert verify(tmp_path / "nowhere", out=out) == (3, {})
    conditions = write_clips(tmp_path / "few", 2)
    assert verify(conditions, "--groups", conditions, out=out) == (3, {})
    assert "not groups" in capsys.readouterr().err
    assert not out.exists()
    assert verify(conditions, "--set", "clips=0", out=out) == (2, {})
