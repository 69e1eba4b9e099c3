"""Clock jumps and time zones: records are UTC, and nothing is ordered by wall-clock time."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from stateplay_rl.stores import layout
from stateplay_rl.stores import manifest as manifests
from tests.e2e.command_line import Arena, run_results, succeed

SETTINGS = {"stage_conditions": 3, "heldout__conditions": 0}


class Backwards(datetime):
    """A clock that jumps three hours back at every look."""

    looks = 0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        cls.looks += 1
        return datetime(2026, 3, 29, 3, 0, tzinfo=tz) - timedelta(hours=3 * cls.looks)


def test_a_clock_that_runs_backwards_changes_no_result(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed(*arena.train(tmp_path / "whole", **SETTINGS))
    monkeypatch.setattr(manifests, "datetime", Backwards)
    moments = iter(range(2_000_000_000, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(moments)))
    succeed(*arena.train(tmp_path / "odd", **SETTINGS))
    assert Backwards.looks > 1
    assert run_results(tmp_path / "odd") == run_results(tmp_path / "whole")
    succeed("verify", "dir", tmp_path / "odd", "--out", tmp_path / "verified")


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/St_Johns"])
def test_records_are_utc_in_every_time_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        before = datetime.now(UTC) - timedelta(seconds=1)
        succeed("audit-ckpt", "--world", "arena", "--out", tmp_path / "audit", "-q")
        after = datetime.now(UTC)
    finally:
        monkeypatch.undo()
        time.tzset()
    record = json.loads((tmp_path / "audit" / layout.MANIFEST).read_text())
    for field in ("started_utc", "ended_utc"):
        assert record[field].endswith("Z")
        assert before <= datetime.fromisoformat(record[field]) <= after, field
