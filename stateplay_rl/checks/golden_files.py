"""Golden files of the mathematics and of the data preparation, one function each."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stateplay_rl.checks.comparison import Comparison, GoldenFolder, GoldenLine, TensorFile
from stateplay_rl.errors import InputError
from stateplay_rl.nft.advantage import DeviationOf, optimality
from stateplay_rl.nft.forward import noised
from stateplay_rl.nft.loss import nft_loss
from stateplay_rl.nft.old_policy import DECAY_TYPES, weight_on_old
from stateplay_rl.nft.schedule import SHIFT, TrainingGrid, model_timestep, sampling_sigmas
from stateplay_rl.nft.solvers import Euler, solver_steps
from stateplay_rl.stores.foreign import parse_json
from stateplay_rl.stores.pictures import opened_picture

PICTURE_WIDTH, PICTURE_HEIGHT = 832, 480
HOLD_ROWS = 10
FLOAT32_LOSS_TOLERANCE = 1e-5


def check_loss(folder: GoldenFolder, name: str) -> GoldenLine:
    """Loss parts, per-sample loss, mean, gradient for v_live: 1e-12 relative (1e-5 for float32 files)."""
    file = folder.tensors(name)
    settings = {f"case{row['case']}": row for row in parse_json(file.metadata.get("cases", "[]"))}
    double = all(t.dtype == torch.float64 for t in file.tensors.values())
    comparison = Comparison(1e-12 if double else FLOAT32_LOSS_TOLERANCE)
    for case in file.cases():
        if case not in settings:
            raise InputError(f"{name}: metadata 'cases' says nothing about {case}", "export its settings")
        v_live = file[f"{case}.v_live"].clone().requires_grad_()
        sample = noised(file[f"{case}.x0"], file[f"{case}.noise"], file[f"{case}.sigma"])
        result = nft_loss(
            sample,
            v_live,
            file[f"{case}.v_old"],
            file[f"{case}.r"],
            beta_nft=float(settings[case]["beta_nft"]),
            advantage_clip=float(settings[case]["advantage_clip"]),
            has_condition_slot=False,
        )
        (gradient,) = torch.autograd.grad(result.mean, v_live)
        computed = {
            "loss_pos": result.pos,
            "loss_neg": result.neg,
            "loss_per_sample": result.loss_per_sample,
            "loss": result.mean.reshape(1),
            "grad_v_live": gradient,
        }
        for key, value in computed.items():
            comparison.relative(f"{case}.{key}", value.detach(), file[f"{case}.{key}"])
    return comparison.line(name)


def check_advantage(folder: GoldenFolder, name: str) -> GoldenLine:
    """Advantages with floor 0 to 1e-4 relative, tied groups exactly 0."""
    comparison = Comparison(1e-4)
    for number, case in enumerate(folder.json(name)):
        of: DeviationOf = "batch" if case["global_std"] else "group"
        rows: dict[str, list[int]] = {}
        for position, group in enumerate(case["group"]):
            rows.setdefault(group, []).append(position)
        if len({len(positions) for positions in rows.values()}) != 1:
            raise InputError(f"{name}: case {number} has groups of different sizes", "export equal groups")
        index_GK = torch.tensor(list(rows.values()))
        scores_GK = torch.tensor(case["score"], dtype=torch.float64)[index_GK]
        wanted_GK = torch.tensor(case["advantage"], dtype=torch.float64)[index_GK]
        result = optimality(scores_GK, advantage_clip=1.0, std_floor_points=0.0, deviation_of=of)
        for row, group in enumerate(rows):
            got, wanted = result.advantage_GK[row], wanted_GK[row]
            if bool(result.tied_G[row]):
                comparison.exact(f"case {number} {group}", got.tolist(), wanted.tolist())
            else:
                comparison.elementwise(f"case {number} {group}", got, wanted)
    return comparison.line(name)


def check_decay(folder: GoldenFolder, name: str) -> GoldenLine:
    """Weight on the old parameters, exactly."""
    comparison = Comparison(0.0)
    for key, table in folder.json(name).items():
        match = re.fullmatch(r"decay_type_(\d+)", key)
        if match is None:
            continue
        decay = DECAY_TYPES.get(int(match[1]))
        if decay is None:
            raise InputError(f"{name}: decay type {match[1]} is not known", "types 1 and 2 are")
        for steps, weight in table.items():
            got = weight_on_old(int(steps), decay)
            comparison.exact(f"type {match[1]}, step {steps}", got, weight)
    return comparison.line(name)


def check_schedule(folder: GoldenFolder, name: str) -> GoldenLine:
    """Sampling grids `sampling<steps>[_shift<x>]`, Euler paths, training grids `training<steps>`: 1e-6."""
    file = folder.tensors(name)
    comparison = Comparison(1e-6)
    for grid in file.cases():
        match = re.fullmatch(r"(sampling|training)(\d+)(?:_shift(\d+(?:\.\d+)?))?", grid)
        if match is None:
            raise InputError(f"{name}: {grid!r} names no grid", "sampling<steps>[_shift<x>] or training<steps>")
        steps, shift = int(match[2]), float(match[3] or SHIFT)
        if match[1] == "training":
            training = TrainingGrid.build(steps, shift)
            computed = vars(training)
        else:
            sigmas = sampling_sigmas(steps, shift)
            computed = {"sigmas": sigmas, "timesteps": model_timestep(sigmas)}
        for key in sorted(k for k in file.tensors if k.rpartition(".")[0] == grid):
            what = key.rpartition(".")[2]
            if what == "euler_const_v":
                _compare_path(comparison, key, file, computed["sigmas"])
            elif what == "timesteps":
                # 1000 sigma: the same error as the sigma's, in units of 1000.
                comparison.absolute(key, computed[what] / 1000, file[key].double() / 1000)
            elif what in computed:
                comparison.absolute(key, computed[what], file[key])
            else:
                raise InputError(f"{name}: {key!r} is not known", "sigmas, timesteps, weights, euler_const_v")
    return comparison.line(name)


def _compare_path(comparison: Comparison, key: str, file: TensorFile, sigmas: Tensor) -> None:
    """Latents after each step under a constant velocity; the path's two ends give start and velocity."""
    path = file[key].double()
    if path.dim() != 2 or len(path) < 2 or len(path) != len(sigmas):
        raise InputError(f"{key} must be [steps, values] with at least 2 steps", "export the path after each step")
    ends = torch.cat([sigmas.double(), torch.zeros(1, dtype=torch.float64)])
    velocity = (path[-1] - path[0]) / (ends[-1] - ends[1])
    start = path[0] - (ends[1] - ends[0]) * velocity
    ours = torch.cat(
        list(solver_steps(Euler, lambda x, _: velocity[None].to(x), start[None], sigmas, latent_dtype=torch.float32))
    )
    comparison.absolute(key, ours, path)


def check_action_bins(folder: GoldenFolder, name: str) -> GoldenLine:
    """Bins of the held signal (the stored one, else the clip's), and the stored held signal, exactly."""
    from stateplay_rl.worlds.preparation import bin_actions, hold_actions

    file = folder.tensors(name)
    comparison = Comparison(0.0)
    without_clip = set()
    for key in sorted(file.tensors):
        match = re.fullmatch(r"(?:(.+)/)?rows(\d+)\.(held|bins(\d+))", key)
        if match is None:
            raise InputError(f"{name}: {key!r} names no bins", "<clip>/rows<R>.held or <clip>/rows<R>.bins<f>")
        stored = file.tensors.get(f"{key.rpartition('.')[0]}.held")
        held: Tensor | None = None
        if folder.clips is not None and match[1] in folder.clip_names:
            raw_RK = _raw_actions(folder.clips / match[1])[: int(match[2])]
            held = torch.from_numpy(hold_actions(raw_RK, HOLD_ROWS).held_RK)
        if match[3] == "held":
            if held is None:
                without_clip.add(match[1])
            else:
                comparison.absolute(key, held, file[key])
            continue
        source = stored if stored is not None else held
        if source is None:
            raise InputError(f"{name}: {key} has neither a stored held signal nor its clip", "export .held too")
        comparison.absolute(key, torch.from_numpy(bin_actions(source.numpy(), int(match[4]))), file[key])
    note = f"held signal of {len(without_clip)} clips not checked: {folder.why_no_clips()}"
    return comparison.line(name, note if without_clip else "")


def _parquet(clip: Path) -> Any:
    import pyarrow.parquet as pq

    path = clip / "actions.parquet"
    if not path.is_file():
        raise InputError(f"{path} is missing", "give the folder of complete clips")
    return pq.read_table(path)


def _raw_actions(clip: Path) -> np.ndarray:
    from stateplay_rl.config.buttons import BUTTONS

    table = _parquet(clip)
    return np.stack([np.asarray(table.column(button).to_numpy()) for button in BUTTONS], axis=1)


def check_action_files(folder: GoldenFolder, name: str) -> GoldenLine:
    """Rows, columns and dtypes of the real action files, exactly; needs the clips."""
    comparison = Comparison(0.0)
    wanted = folder.json(name)
    for clip, facts in wanted.items():
        if clip not in folder.clip_names or folder.clips is None:
            continue
        table = _parquet(folder.clips / clip)
        found = {
            "rows": table.num_rows,
            "columns": list(table.column_names),
            "dtypes": [str(kind) for kind in table.schema.types],
        }
        for key, value in facts.items():
            comparison.exact(f"{clip} {key}", found.get(key), value)
    return _with_clips(comparison, folder, name, set(wanted))


def check_first_frames(folder: GoldenFolder, name: str) -> GoldenLine:
    """Source size and sha256 of the prepared 832x480 RGB first frame, exactly; needs the clips."""
    from stateplay_rl.worlds.preparation import prepare_first_frame

    comparison = Comparison(0.0)
    wanted = folder.json(name)
    for clip, facts in wanted.items():
        if clip not in folder.clip_names or folder.clips is None:
            continue
        file = folder.clips / clip / "first_frame.png"
        with opened_picture(file.read_bytes(), file) as image:
            comparison.exact(f"{clip} source", list(image.size), facts["source"])
            frame = prepare_first_frame(image, PICTURE_WIDTH, PICTURE_HEIGHT)
        comparison.exact(f"{clip} sha256", hashlib.sha256(frame.tobytes()).hexdigest(), facts["sha256"])
    return _with_clips(comparison, folder, name, set(wanted))


def _with_clips(comparison: Comparison, folder: GoldenFolder, name: str, wanted: set[str]) -> GoldenLine:
    absent = wanted - folder.clip_names
    if wanted and absent == wanted:
        return GoldenLine.skipped(name, folder.why_no_clips())
    return comparison.line(name, f"{len(absent)} of {len(wanted)} clips are not at hand" if absent else "")


def check_prompts(folder: GoldenFolder, name: str) -> GoldenLine:
    """Cleaned prompts, exactly."""
    from stateplay_rl.worlds.preparation import clean_prompt

    comparison = Comparison(0.0)
    for raw, cleaned in folder.json(name):
        comparison.exact(repr(raw), clean_prompt(raw), cleaned)
    return comparison.line(name)


def check_latent_statistics(folder: GoldenFolder, name: str) -> GoldenLine:
    """Channel means and deviations of the Wan2.2 VAE, exactly."""
    from stateplay_rl.worlds.native.vae_stats import WAN22_LATENT_MEAN, WAN22_LATENT_STD

    stored = folder.json(name)
    comparison = Comparison(0.0)
    comparison.exact("mean", list(WAN22_LATENT_MEAN), stored["mean"])
    comparison.exact("std", list(WAN22_LATENT_STD), stored["std"])
    return comparison.line(name)
