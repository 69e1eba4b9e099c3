"""The noise of the judge behind some scores, from its probe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores import layout
from stateplay_rl.stores.foreign import parse_object, read_object
from stateplay_rl.stores.sealed import read_checked, read_manifest

_HINT = "probe the judge again: sprl score GROUPS --probe"


@dataclass(frozen=True)
class JudgeNoise:
    """What a probe says of a judge.

    Args:
        points: deviation of one score inside an answer when the same candidate is judged again; 0 without noise.
        probe: where that was measured.
    """

    points: float
    probe: Path


def read_noise(probe: Path | None, judge: tuple[str, str], places: Sequence[Path]) -> JudgeNoise | None:
    """The noise of a judge.

    Args:
        probe: the directory of `sprl score --probe`; None looks for the last probe in the request stores that lie
            in or beside `places`, or below RL_RUN_ROOT.
        judge: id and protocol of the judge behind the scores.

    Returns:
        None where no probe of this judge and protocol was found, or where it repeated nothing.

    Raises:
        InputError: `probe` is no finished probe, or one of another judge or protocol.
        CorruptionError: it is damaged.
    """
    if probe is not None:
        manifest = read_manifest(probe, schema="probe")
        value = parse_object(read_checked(manifest, layout.PROBE), probe / layout.PROBE, _HINT)
        found = (value.get("judge_id"), value.get("protocol_sha256"))
        if found != judge:
            raise InputError(
                f"{probe} is a probe of {found[0]} (protocol {str(found[1])[:12]}), the scores are of {judge[0]} "
                f"({judge[1][:12]})",
                _HINT,
            )
        return _noise(value, probe)
    for place in _stores(places):
        file = place / layout.probe_file(judge[1])
        if file.is_file():
            return _noise(read_object(file, _HINT), file)
    return None


def _stores(places: Sequence[Path]) -> list[Path]:
    root = os.environ.get("RL_RUN_ROOT", "")
    tops = [folder for place in places for folder in (place.resolve(), *place.resolve().parents[:3])]
    tops += [Path(root).expanduser()] if root else []
    return [top / layout.REQUESTS_FOLDER for top in dict.fromkeys(tops)]


def _noise(value: dict[str, object], probe: Path) -> JudgeNoise | None:
    if value.get("noise_free") is True:
        return JudgeNoise(0.0, probe)
    within = value.get("within")
    if within is None:
        return None
    points = within.get("value") if isinstance(within, dict) else None
    if not isinstance(points, int | float) or points < 0:
        raise CorruptionError(f"{probe}: field 'within.value' is {points!r}, not points", _HINT)
    return JudgeNoise(float(points), probe)
