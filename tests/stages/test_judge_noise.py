"""The judge's noise is read from a probe of this very judge and protocol, wherever that lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stages.judge_noise import read_noise
from stateplay_rl.stores import layout
from tests.checks.directories import writing

JUDGE = ("openai:m", "a" * 64)
VALUE = {"judge_id": JUDGE[0], "protocol_sha256": JUDGE[1], "within": {"value": 3.5, "low": 1, "high": 5}}


def write_probe(folder: Path, **changes: Any) -> Path:
    with writing(folder, "probe") as out:
        out.write_json(layout.PROBE, {**VALUE, **changes})
        out.seal()
    return folder


def test_a_named_probe(tmp_path: Path) -> None:
    found = read_noise(write_probe(tmp_path / "probe"), JUDGE, [])
    assert found is not None
    assert (found.points, found.probe) == (3.5, tmp_path / "probe")


@pytest.mark.parametrize("change", [{"judge_id": "other"}, {"protocol_sha256": "b" * 64}])
def test_a_probe_of_another_judge_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    with pytest.raises(InputError, match="is a probe of"):
        read_noise(write_probe(tmp_path / "probe", **change), JUDGE, [])


def test_what_is_no_probe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_noise(tmp_path / "none", JUDGE, [])
    with pytest.raises(CorruptionError, match="within"):
        read_noise(write_probe(tmp_path / "probe", within={"value": "3"}), JUDGE, [])


def test_a_judge_without_noise_and_one_that_was_never_asked_again(tmp_path: Path) -> None:
    found = read_noise(write_probe(tmp_path / "free", within=None, noise_free=True), JUDGE, [])
    assert found is not None
    assert found.points == 0.0
    assert read_noise(write_probe(tmp_path / "once", within=None, noise_free=False), JUDGE, []) is None


def test_the_last_probe_in_a_request_store_nearby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RL_RUN_ROOT", raising=False)
    file = tmp_path / "root" / layout.REQUESTS_FOLDER / layout.probe_file(JUDGE[1])
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(VALUE))
    near, far = tmp_path / "root" / "run" / "segments" / "000-a", tmp_path / "x" / "y" / "z" / "w"
    near.mkdir(parents=True)
    far.mkdir(parents=True)
    found = read_noise(None, JUDGE, [near])
    assert found is not None
    assert (found.points, found.probe) == (3.5, file)
    assert read_noise(None, JUDGE, [far]) is None
    assert read_noise(None, ("openai:m", "b" * 64), [near]) is None
    monkeypatch.setenv("RL_RUN_ROOT", str(tmp_path / "root"))
    assert read_noise(None, JUDGE, [far]) is not None
