"""Part `check`: what the exported base is, measured on conditions that it never saw."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from recipe.common import LineLog, Recipe
from stateplay_rl.arena.dataset import CLEAR_CHANGE, ArenaCondition, draw_conditions, render, simulate
from stateplay_rl.arena.game import simulate_first
from stateplay_rl.arena.referee import RefereeReport, compare
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.nft.signal import spread
from stateplay_rl.stores.atomic import write_json
from stateplay_rl.worlds.base import ConditionInputs
from stateplay_rl.worlds.load import load_world
from stateplay_rl.worlds.native.world import NativeWorld
from stateplay_rl.worlds.sampling import sample_candidates
from stateplay_rl.worlds.world_files import arena_world

CHECK_SEED = 777_000
GROUPS = 128
CANDIDATES = 4
STEPS = 5


def _inputs(condition: ArenaCondition, truth_ThwC: np.ndarray) -> ConditionInputs:
    held = condition.held_buttons.astype(np.float32)
    return ConditionInputs(str(condition.index), truth_ThwC[0], held, condition.prompt, 9)


def _judge(condition: ArenaCondition, video_ThwC: np.ndarray) -> RefereeReport:
    return compare(video_ThwC, simulate_first(condition.first, condition.held_buttons, condition.strategy))


def _sample(world: NativeWorld, condition: ArenaCondition, truth: np.ndarray, steps: int) -> np.ndarray:
    batch = world.encode_conditions([_inputs(condition, truth)]).select([0] * CANDIDATES)
    noise = [torch.Generator().manual_seed(1000 * condition.index + k) for k in range(CANDIDATES)]
    latents = sample_candidates(world, batch, policy="live", sigmas=sampling_sigmas(steps), noise=noise)
    return world.decode(latents.float())


def _quantiles(values: list[float]) -> dict[str, float]:
    array = np.array(values)
    return {
        "mean": float(array.mean()),
        **{f"p{q}": float(np.percentile(array, q)) for q in (5, 25, 50, 75, 95)},
    }


def part_check(recipe: Recipe) -> None:
    """Referee scores of VAE round trips and of base samples; writes `check.json` and `samples.png`."""
    log = LineLog(recipe.out / "check.jsonl")
    world = load_world(arena_world(recipe.out / "weights"))
    world.set_mode("full")
    conditions = draw_conditions(recipe.conditions(GROUPS), seed=CHECK_SEED, minimum=CLEAR_CHANGE)
    truths = [render(simulate(c)) for c in conditions]
    trips = [_judge(c, world.decode(world.encode_video(t)[None])[0]) for c, t in zip(conditions, truths, strict=True)]
    result: dict[str, object] = {"vae_round_trip": _quantiles([t.score for t in trips])}
    log.write(**result)
    rows: list[np.ndarray] = []
    for steps in (STEPS, 10):
        reports = []
        for condition, truth in zip(conditions, truths, strict=True):
            videos = _sample(world, condition, truth, steps)
            reports.append([_judge(condition, video) for video in videos])
            if steps == STEPS and len(rows) < 15:
                rows.extend(np.concatenate(v[::4], axis=1) for v in (truth, *videos))
        result[f"steps_{steps}"] = _summary(reports)
        log.write(steps=steps, **_summary(reports))
    Image.fromarray(np.concatenate(rows)).save(recipe.out / "samples.png")
    write_json(recipe.out / "check.json", result)


def _summary(reports: list[list[RefereeReport]]) -> dict[str, object]:
    scores_GK = torch.tensor([[r.score for r in row] for row in reports], dtype=torch.float64)
    flat = [r for row in reports for r in row]
    measured = spread(scores_GK)
    hp = [r.frozen_hp for r in flat if r.frozen_hp is not None]
    meter = [r.frozen_meter for r in flat if r.frozen_meter is not None]
    return {
        "score": _quantiles(scores_GK.flatten().tolist()),
        "within_group": measured.within_group,
        "share_both_modes": measured.share_both_modes,
        "frozen_hp": float(np.mean(hp)),
        "frozen_meter": float(np.mean(meter)),
        "position": float(np.mean([r.position for r in flat if r.position is not None])),
        "readable": float(np.mean([r.readable_share for r in flat])),
    }
