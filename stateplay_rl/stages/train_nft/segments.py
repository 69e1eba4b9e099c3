"""Which segment of a run a command works on: how many conditions and batches it has, and where they begin.

Stages A and C make one pass over the ledger. A segment's share is a number of conditions, cut into batches of its own;
the last one may be smaller. Batch numbers go on from segment to segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.base import changed_keys, config_dict
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.errors import InputError, OutputError, UsageError
from stateplay_rl.stages.train_nft.inputs import HAND_MADE, TrainInputs
from stateplay_rl.stores import layout
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.manifest import Manifest, is_sealed, manifest_sha256, read_manifest
from stateplay_rl.stores.segments import Segment, list_segments, next_segment
from stateplay_rl.stores.unfinished import read_unfinished

SMOKE_BATCHES = 10
"""Most batches of a stage C that was forced without its gate."""
SAMPLER = tuple(
    f"sampling.{name}" for name in ("solver", "cache", "cache_every", "cache_threshold", "shift", "latents")
)
"""Settings that the sampler's name is made of: one run holds candidates of one sampler."""
MUST_KEEP = {"c": ("world", "mode", "seed", *SAMPLER), HAND_MADE: ("world", "mode", *SAMPLER)}
"""Settings that a later segment cannot change: live, old and moments would be of something else. `--extend`: all."""
OF_OTHER_STAGES = ("stage", "stage_a_limit", "stage_c_conditions", "audits", "reward_model", "force_without_gate")
NOT_MEANING = (*OF_OTHER_STAGES, "extend", "preflight")
"""Settings that say which stage may run and how long, not what stage A computes."""


@dataclass(frozen=True)
class SegmentPlan:
    """One segment: its kind, its conditions, and where it begins.

    Args:
        kind: `a`, `c` or `hand`.
        extension: conditions added by `--extend`, 0 otherwise.
        first_batch: number of its first batch.
        conditions: how many it consumes.
        per_batch: conditions of a full batch.
        begins: the run was finished and is opened again for this segment.
        smoke: stage C without its gate.
        sealed: the segment itself is finished; a kill came before the run was sealed.
        done: folder of the finished segment when there is nothing left to do, else None.
    """

    kind: str
    extension: int
    first_batch: int
    conditions: int
    per_batch: int
    begins: bool = False
    smoke: bool = False
    sealed: bool = False
    done: Path | None = None

    @property
    def batches(self) -> int:
        """Batches of this segment."""
        return -(-self.conditions // self.per_batch)

    @property
    def end_batch(self) -> int:
        """Number after its last batch."""
        return self.first_batch + self.batches

    def conditions_of(self, batch: int) -> int:
        """Conditions of a batch; the segment's last one may be smaller."""
        before = (batch - self.first_batch) * self.per_batch
        return min(self.per_batch, self.conditions - before)

    def sizes(self) -> list[int]:
        """Conditions of each batch."""
        return [self.conditions_of(batch) for batch in range(self.first_batch, self.end_batch)]


@dataclass(frozen=True)
class Consumed:
    """What the sealed segments of a run have consumed."""

    batches: int = 0
    conditions: int = 0
    stage_a: int = 0


def plan_segment(
    config: TrainNftConfig, inputs: TrainInputs, out: Path, pass_conditions: int, *, smoke: bool = False
) -> SegmentPlan:
    """The segment that this command begins, goes on with, or has finished. Reads only.

    Args:
        config: settings of this command.
        inputs: its inputs.
        out: the run; need not exist.
        pass_conditions: conditions of the whole pass.
        smoke: stage C was forced without its gate.

    Raises:
        InputError: fewer conditions are left than are asked for, or there is no stage A to go on from.
        UsageError: another conditions directory, or settings that a stage cannot change.
        OutputError: another segment is still open.
    """
    segments = () if inputs.overwrite else list_segments(out)
    kind, extension = inputs.kind(config), config.extend or 0
    finished = [segment for segment in segments if segment.sealed]
    is_open = len(finished) < len(segments)
    sealed_last = not is_open and _run_waits_for_its_seal(out, finished)
    if sealed_last:
        last = finished.pop()
        before = consumed(finished)
        if not _is(last, kind, extension):
            next_segment(out, kind, extension, unsealed=last)
        count = consumed([last]).conditions
        return SegmentPlan(
            kind, extension, before.batches, count, config.conditions_per_batch, smoke=smoke, sealed=True
        )
    matching = [segment for segment in finished if _is(segment, kind, extension)]
    mine = _is(segments[-1], kind, extension) if is_open else _was_begun(out, kind, extension)
    if matching and inputs.resume and kind != HAND_MADE and not mine:
        return _done(config, inputs, matching[-1])
    if is_open:
        next_segment(out, kind, extension)  # refuses when it is another one
    before = consumed(finished)
    begins = _is_finished_run(out) and not inputs.overwrite
    if begins and kind == "a" and not extension:
        raise OutputError(
            f"output {out} is finished",
            "choose another --out, extend stage A (--extend 280), or replace it (--overwrite)",
        )
    if extension and any(segment.kind == "c" for segment in segments):
        raise InputError(f"{out}: stage C has begun, stage A is closed", "stage C consumes the rest of the pass")
    if begins:
        _refuse_other_run(config, inputs, out)
    if kind == HAND_MADE:
        return SegmentPlan(kind, 0, before.batches, 0, config.conditions_per_batch, begins=begins)
    count = _count(config, kind, extension, before, pass_conditions, out, smoke=smoke)
    return SegmentPlan(kind, extension, before.batches, count, config.conditions_per_batch, begins=begins, smoke=smoke)


def _is_finished_run(out: Path) -> bool:
    """Whether `out` is a sealed run; anything else that is sealed is refused when the run is opened."""
    return is_sealed(out) and read_manifest(out).schema_name == "run"


def _run_waits_for_its_seal(out: Path, finished: Sequence[Segment]) -> bool:
    """A kill came between the last segment's seal and the run's: a run is sealed once a segment."""
    if is_sealed(out) or not (out / layout.UNFINISHED).is_file():
        return False
    return len(finished) > len(read_unfinished(out).earlier)


def _was_begun(out: Path, kind: str, extension: int) -> bool:
    """The run was opened for such a segment, and a kill came before the segment's folder was there."""
    if is_sealed(out) or not (out / layout.UNFINISHED).is_file():
        return False
    begun = read_unfinished(out).config
    return (begun.get("stage", "a"), begun.get("extend") or 0) == (kind, extension)


def _done(config: TrainNftConfig, inputs: TrainInputs, segment: Segment) -> SegmentPlan:
    """The finished segment that this command asks for; refused when it was made with other settings."""
    manifest = read_manifest(segment.path, schema="segment")
    _refuse_changes(changes_of_meaning(manifest.config, config), segment.path, "trained")
    _refuse_other_conditions(manifest, inputs, segment.path)
    own = consumed([segment])
    return SegmentPlan(
        segment.kind,
        segment.extension,
        int(manifest.extra.get("first_batch", 0)),
        own.conditions,
        config.conditions_per_batch,
        done=segment.path,
    )


def consumed(segments: Sequence[Segment]) -> Consumed:
    """Batches and conditions of sealed segments, from their manifests."""
    batches = conditions = stage_a = 0
    for segment in segments:
        extra = read_manifest(segment.path, schema="segment").extra
        if "batches" in extra:
            own_batches, own_conditions = int(extra["batches"]), int(extra["conditions"])
        else:
            # Written before segments recorded it: every batch left its verdicts.
            own_conditions = len(LineLog(segment.path / layout.VERDICTS).read())
            groups = [segment.groups.read(group_id).record.batch for group_id in segment.groups.finished()]
            own_batches = 1 if segment.kind == HAND_MADE else len(set(groups))
        batches += own_batches
        conditions += own_conditions
        stage_a += own_conditions if segment.kind == "a" else 0
    return Consumed(batches, conditions, stage_a)


def _is(segment: Segment, kind: str, extension: int) -> bool:
    return (segment.kind, segment.extension) == (kind, extension)


def _count(
    config: TrainNftConfig,
    kind: str,
    extension: int,
    before: Consumed,
    pass_conditions: int,
    out: Path,
    *,
    smoke: bool,
) -> int:
    """Conditions of a segment that is begun or gone on with."""
    left = pass_conditions - before.conditions
    if kind == "c":
        return _count_c(config, before, left, out, smoke=smoke)
    if extension:
        _refuse_extension(config, extension, before, out)
    wanted = extension or config.stage_conditions
    if wanted > left:
        raise InputError(
            f"{left} conditions of pool 'pass' are left, stage A wants {wanted}",
            "build more conditions, or "
            + (f"--extend {left}" if extension and left else f"--set stage_conditions={max(left, 0)}"),
        )
    return wanted


def _count_c(config: TrainNftConfig, before: Consumed, left: int, out: Path, *, smoke: bool) -> int:
    if not before.batches:
        raise InputError(
            f"{out} holds no finished stage A: stage C goes on where A left the policies and the ledger",
            "give --out RUN of stage A, or run stage A first (--stage a)",
        )
    wanted = left if config.stage_c_conditions is None else config.stage_c_conditions
    if wanted > left or left == 0:
        raise InputError(
            f"{out}: {left} conditions of the pass are left, stage C wants {config.stage_c_conditions or 'some'}",
            f"--set stage_c_conditions={left}" if left else "the pass is complete: nothing is left to train on",
        )
    return min(wanted, SMOKE_BATCHES * config.conditions_per_batch) if smoke else wanted


def _refuse_extension(config: TrainNftConfig, extension: int, before: Consumed, out: Path) -> None:
    if not before.stage_a:
        raise InputError(f"{out} holds no finished stage A to extend", "run it first, without --extend")
    if before.stage_a + extension > config.stage_a_limit:
        raise InputError(
            f"{out}: stage A has {before.stage_a} conditions, {extension} more pass its limit of "
            f"{config.stage_a_limit}",
            f"extend by at most {config.stage_a_limit - before.stage_a}, or --set stage_a_limit=N",
        )


def _refuse_other_run(config: TrainNftConfig, inputs: TrainInputs, out: Path) -> None:
    """A new segment goes on with the run's own world, parameters, seed and conditions."""
    manifest = read_manifest(out, schema="run")
    _refuse_other_conditions(manifest, inputs, out)
    changed = changes_of_meaning(manifest.config, config)
    keep = MUST_KEEP.get(inputs.kind(config))
    if keep is not None:
        changed = {key: values for key, values in changed.items() if key in keep}
    _refuse_changes(changed, out, "trained")


def _refuse_other_conditions(manifest: Manifest, inputs: TrainInputs, where: Path) -> None:
    recorded, given = manifest.inputs["conditions"].sha256, manifest_sha256(inputs.conditions)
    if recorded != given:
        raise UsageError(
            f"{where} was begun with another input 'conditions' ({str(recorded)[:12]}, now {given[:12]})",
            "one pass is made over one conditions/ directory: give that of the run",
        )


def _refuse_changes(changed: dict[str, tuple[Any, Any]], where: Path, how: str) -> None:
    if changed:
        lines = "\n".join(f"  {key}: was {old!r}, now {new!r}" for key, (old, new) in changed.items())
        raise UsageError(
            f"{where} was {how} with another config:\n{lines}",
            f"go on with --config {where / layout.CONFIG}, or choose another --out",
        )


def changes_of_meaning(before: dict[str, Any], config: TrainNftConfig) -> dict[str, tuple[Any, Any]]:
    """Settings that differ from a run's and decide what it computes."""
    free = (*TrainNftConfig.resume_may_change, *NOT_MEANING)
    return {
        key: values
        for key, values in changed_keys(before, config_dict(config)).items()
        if not any(key == name or key.startswith(f"{name}.") for name in free)
    }
