"""`sprl verify actions`: which measures of action following may speak on these clips, and what they say of groups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stateplay_rl.checks.lines import CheckLine
from stateplay_rl.config.verify import ActionsConfig
from stateplay_rl.errors import InputError
from stateplay_rl.evaluation.action_following import MIN_ACCURACY, ActionReferee, Calibration
from stateplay_rl.evaluation.intervals import Bounds
from stateplay_rl.evaluation.referee import RefereeCase
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.action_choice import action_window, case_of, clip_records, known_game, make_actions
from stateplay_rl.stages.candidates import reference_frames
from stateplay_rl.stages.group_source import open_groups
from stateplay_rl.stages.verify import VerifySummary, default_out, seal_record
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.video import decode_mp4

Obeyed = dict[str, Bounds]


def run(config: ActionsConfig, out: Path | None = None, *, overwrite: bool = False) -> VerifySummary:
    """Calibrate on the real clips, measure the groups if there are any, write the record.

    Args:
        config: clips and groups.
        out: directory to write; None for `verify-<utc>`.
        overwrite: empty `out` first.

    Returns:
        A line a probe: failed where it must not speak. Where the truth is known (arena), the real clips themselves
        are held against it. Groups add lines with shares, which no threshold judges.

    Raises:
        InputError: clips of no known game, no real clip, or groups of other conditions.
        OutputError: the output directory is not usable; nothing was measured.
    """
    conditions = ConditionStore.open(config.conditions)
    if known_game(conditions) is None:
        raise InputError(f"{config.conditions} shows no game whose moves are known", "there is no probe for it")
    if not clip_records(conditions, config.clips):
        raise InputError(f"no condition of {config.conditions} has a real clip", "calibration needs them")
    source = None if config.groups is None else open_groups(config.groups)
    given = {"conditions": config.conditions, "groups": config.groups}
    with OutputDirectory.open(
        default_out() if out is None else out,
        schema="verify",
        version=layout.SCHEMAS["verify"],
        command="verify actions",
        config=config,
        inputs={name: path for name, path in given.items() if path is not None},
        resume=False,
        overwrite=overwrite,
        protected=[],
    ) as directory:
        referee = make_actions("auto", conditions, config.clips)
        assert referee is not None, "the game is known"
        lines = [_calibration_line(calibration) for calibration in referee.calibrations.values()]
        real: Obeyed = {}
        if not referee.calibrations:
            real = _in_clips(referee, conditions, config.clips)
            lines += [_truth_line(name, bounds) for name, bounds in real.items()]
        generated: Obeyed = {}
        if source is not None:
            for group_id in source.roots:
                _add(generated, _in_group(referee, conditions, source.read(group_id)))
            lines += [_group_line(name, bounds, referee) for name, bounds in generated.items()]
        summary = VerifySummary("actions", directory.path, tuple(lines))
        seal_record(directory, summary, config.groups or config.conditions, _measures(referee, real, generated))
    return summary


def _in_clips(referee: ActionReferee, conditions: ConditionStore, count: int) -> Obeyed:
    """The real clips themselves, where the truth is known."""
    found: Obeyed = {}
    records = clip_records(conditions, count)
    window = action_window(conditions)
    with Progress("real clips", len(records), "clips") as progress:
        for record in records:
            frames_ThwC = reference_frames(conditions, record)
            assert frames_ThwC is not None, "these conditions have a clip"
            name = record.condition_id
            case = RefereeCase(conditions.first_frame(name), conditions.held_actions(name), record.prompt)
            _add(found, referee.obeyed(frames_ThwC, case, window))
            progress.advance()
    return found


def _in_group(referee: ActionReferee, conditions: ConditionStore, group: StoredGroup) -> Obeyed:
    found: Obeyed = {}
    case = case_of(conditions, group.record)
    for k in range(group.record.candidates):
        _add(found, referee.obeyed(decode_mp4(group.candidate_video(k)), case, action_window(conditions)))
    return found


def _add(total: Obeyed, more: Mapping[str, Bounds]) -> None:
    for name, bounds in more.items():
        total[name] = total.get(name, Bounds()) + bounds


def _calibration_line(calibration: Calibration) -> CheckLine:
    if not calibration.usable:
        return CheckLine(calibration.probe, "failed", f"withheld: {calibration.reason}", todo=_TODO)
    assert calibration.real is not None, "a usable calibration has seen real clips"
    text = (
        f"balanced accuracy {calibration.accuracy:.2f}, lower bound {calibration.accuracy_low:.2f} "
        f"(at least {MIN_ACCURACY}); in real clips {_share(calibration.real)}"
    )
    return CheckLine(calibration.probe, "passed", text)


_TODO = "give more clips (--set clips=N), or a better probe (stateplay_rl/evaluation/action_probes.py)"


def _truth_line(name: str, bounds: Bounds) -> CheckLine:
    """On real clips of a game whose truth is known, commanded moves must be seen."""
    if bounds.total == 0:
        return CheckLine(name, "skipped", "no window commands it")
    good = bounds.low is not None and bounds.low >= MIN_ACCURACY
    return CheckLine(name, "passed" if good else "failed", f"real clips: {_share(bounds)}")


def _group_line(name: str, bounds: Bounds, referee: ActionReferee) -> CheckLine:
    known = referee.calibrations.get(name)
    beside = "" if known is None or known.real is None else f"; real clips {_share(known.real)}"
    if bounds.total == 0:
        return CheckLine(f"{name} in groups", "skipped", "no window commands it")
    return CheckLine(f"{name} in groups", "passed", f"obeyed in {_share(bounds)}{beside}")


def _share(bounds: Bounds) -> str:
    """`0.61 to 0.70 of 124 windows`: unreadable counted wrong, and left out."""
    high = "?" if bounds.high is None else f"{bounds.high:.2f}"
    return f"{bounds.low:.2f} to {high} of {bounds.total} windows"


def _measures(referee: ActionReferee, real: Obeyed, generated: Obeyed) -> dict[str, Any]:
    return {
        "referee": referee.name,
        "calibrations": {name: calibration.to_json() for name, calibration in referee.calibrations.items()},
        "real": {name: bounds.to_json() for name, bounds in real.items()},
        "groups": {name: bounds.to_json() for name, bounds in generated.items()},
    }
