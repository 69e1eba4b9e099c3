"""From a judge's settings to the judge. Here, because the referee lives in a layer above `judges`."""

from __future__ import annotations

import os
from pathlib import Path

from stateplay_rl.config.base import load_config
from stateplay_rl.config.score import JudgeConfig, SingleJudgeConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.judges.base import Judge
from stateplay_rl.judges.mix import MixJudge, MixPart
from stateplay_rl.judges.openai_judge import OpenAIJudge
from stateplay_rl.judges.plugin import load_plugin
from stateplay_rl.judges.replay import ReplayJudge
from stateplay_rl.stores import layout
from stateplay_rl.stores.refusal import resolve_out

ARENA = "arena"
_OTHERS = "use --judge openai, --judge referee (arena), --judge replay with --scores DIR, or a plug-in"


def requests_folder(spec: SingleJudgeConfig, out: Path | None) -> Path:
    """Where a command that writes `out` keeps its paid requests: one store per run root.

    The configured folder, else `requests` below RL_RUN_ROOT, else beside the output (or here, without one).
    """
    if spec.requests.folder is not None:
        return resolve_out(spec.requests.folder)
    root = os.environ.get("RL_RUN_ROOT", "")
    beside = Path.cwd() if out is None else Path(os.path.realpath(out)).parent
    top = Path(root).expanduser().absolute() if root else beside
    return top / layout.REQUESTS_FOLDER


def make_judge(spec: JudgeConfig, *, world: str, out: Path | None = None, resend_in_doubt: bool = False) -> Judge:
    """The judge that `spec` describes.

    Args:
        spec: validated settings.
        world: `--world` of the groups (`arena` or a world file); the referee can read arena's pixels only.
        out: the directory that the command writes, from which the place of the request store follows.
        resend_in_doubt: the judge `openai` sends again what may have been paid already.

    Raises:
        UsageError: a judge that this world or this version does not have, or a plug-in that fails to load.
        InputError: the replayed scores are missing, unfinished or damaged.
    """
    if spec.name == "mix":
        parts = {
            name: MixPart(_single(part, world, out, resend_in_doubt), part.weight) for name, part in spec.parts.items()
        }
        return MixJudge(parts)
    return _single(spec, world, out, resend_in_doubt)


def make_referee(spec: JudgeConfig, *, world: str) -> Judge | None:
    """The world's own referee, to be watched beside the judge; None where there is none, or where it is the judge.

    Args:
        spec: the training judge: a referee whose scores train is no independent one.
        world: as in `make_judge`.
    """
    trains = spec.name == "referee" or any(part.name == "referee" for part in spec.parts.values())
    return None if trains or not _is_arena(world) else _referee(world)


def _single(spec: SingleJudgeConfig, world: str, out: Path | None, resend_in_doubt: bool) -> Judge:
    if spec.name == "referee":
        return _referee(world)
    if spec.name == "replay":
        assert spec.scores is not None, "validated by the schema"
        return ReplayJudge(spec.scores)
    if spec.name == "openai":
        return OpenAIJudge(spec, requests_folder(spec, out), resend_in_doubt=resend_in_doubt)
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
