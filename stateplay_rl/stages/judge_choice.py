"""From a judge's settings to the judge. Here, because the referee lives in a layer above `judges`."""

from __future__ import annotations

from pathlib import Path

from stateplay_rl.config.base import load_config
from stateplay_rl.config.score import JudgeConfig, SingleJudgeConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.judges.base import Judge
from stateplay_rl.judges.mix import MixJudge, MixPart
from stateplay_rl.judges.plugin import load_plugin
from stateplay_rl.judges.replay import ReplayJudge

ARENA = "arena"
_OTHERS = "use --judge referee (arena), --judge replay with --scores DIR, or a plug-in package.module:Class"


def make_judge(spec: JudgeConfig, *, world: str) -> Judge:
    """The judge that `spec` describes.

    Args:
        spec: validated settings.
        world: `--world` of the groups (`arena` or a world file); the referee can read arena's pixels only.

    Raises:
        UsageError: a judge that this world or this version does not have, or a plug-in that fails to load.
        InputError: the replayed scores are missing, unfinished or damaged.
    """
    if spec.name == "mix":
        parts = {name: MixPart(_single(part, world), part.weight) for name, part in spec.parts.items()}
        return MixJudge(parts)
    return _single(spec, world)


def _single(spec: SingleJudgeConfig, world: str) -> Judge:
    if spec.name == "referee":
        return _referee(world)
    if spec.name == "replay":
        assert spec.scores is not None, "validated by the schema"
        return ReplayJudge(spec.scores)
    if spec.name == "openai":
        raise UsageError(
            "the judge `openai` is not part of this version: it comes with the HTTP judge",
            _OTHERS,
        )
    if spec.name == "student":
        return _student(spec)
    return load_plugin(spec.name, spec.options)


def _student(spec: SingleJudgeConfig) -> Judge:
    from stateplay_rl.reward_model.judge import StudentJudge

    assert spec.reward_model is not None, "validated by the schema"
    return StudentJudge(
        spec.reward_model,
        base=spec.student_base,
        device=spec.student_device,
        wait_on_host=spec.student_waits_on_host,
    )


def _referee(world: str) -> Judge:
    if not _is_arena(world):
        raise UsageError(
            f"the referee reads arena's own pixels; these groups are of world {world!r}",
            "use another judge, or give groups that were rolled out with --world arena",
        )
    from stateplay_rl.arena.judge import RefereeJudge

    return RefereeJudge()


def _is_arena(world: str) -> bool:
    """The packaged world, or a world file of the same preset (arena with other weights)."""
    file = Path(world)
    return world == ARENA or (file.is_file() and load_config(WorldConfig, file).preset == ARENA)
