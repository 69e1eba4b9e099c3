"""The arena study: its arithmetic, and a tiny form of the whole."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.nft.solvers import Euler, solve
from stateplay_rl.stages.train_nft.samples import Sample

STUDY = Path(__file__).resolve().parents[1] / "examples" / "benchmarks" / "study"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STUDY))


@pytest.fixture
def grpo() -> ModuleType:
    import flow_grpo

    return flow_grpo


def gaussian_velocity(mean: float, deviation: float) -> Any:
    """E[eps - x0 | x] for x0 ~ N(mean, deviation^2) and x = (1 - s) x0 + s eps, in closed form."""

    def velocity(x: Tensor, sigma_B: Tensor) -> Tensor:
        sigma = float(sigma_B[0])
        variance = (1 - sigma) ** 2 * deviation**2 + sigma**2
        slope = (sigma - (1 - sigma) * deviation**2) / variance
        return -mean + slope * (x - (1 - sigma) * mean)

    return velocity


def sample_gaussian(grpo: ModuleType, noise_level: float, steps: int) -> Any:
    """Trajectories of 4,000 independent elements towards N(0.5, 0.3^2), on the unshifted grid."""
    draws = torch.Generator().manual_seed(3)
    shape = (2, 1, 21, 10, 10)
    initial = torch.randn(shape, generator=draws, dtype=torch.float64)
    return grpo.sde_trajectory(
        gaussian_velocity(0.5, 0.3),
        initial,
        torch.zeros(2, 1, 1, 10, 10, dtype=torch.float64),
        sampling_sigmas(steps, 1.0, torch.float64),
        noise_level,
        lambda step: torch.randn(shape, generator=draws, dtype=torch.float64),
    )


@pytest.mark.parametrize("noise_level", [0.3, 0.7])
def test_the_sde_has_the_marginals_of_the_ode(grpo: ModuleType, noise_level: float) -> None:
    """At every noise level N((1-s) m, (1-s)^2 d^2 + s^2). 4,000 draws: the mean is known to d/63, deviations to 1 %.

    The pull and the noise cancel only together: without the pull the deviation would grow by the noise.
    """
    kept = sample_gaussian(grpo, noise_level, 200)
    grid = [*sampling_sigmas(200, 1.0, torch.float64).tolist(), 0.0]
    for step in (50, 100, 150, 200):
        sigma = grid[step]
        values = kept.latents[:, step, :, 1:].flatten()
        expected = math.sqrt((1 - sigma) ** 2 * 0.3**2 + sigma**2)
        assert float(values.mean()) == pytest.approx((1 - sigma) * 0.5, abs=4 * expected / 63)
        assert float(values.std()) == pytest.approx(expected, rel=0.05)


def test_without_noise_the_sde_is_the_euler_sampler(grpo: ModuleType) -> None:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(2, 1, 3, 2, 2, generator=draws, dtype=torch.float64)
    velocity, sigmas = gaussian_velocity(0.5, 0.3), sampling_sigmas(5, dtype=torch.float64)
    expected = solve(Euler, velocity, x, sigmas, latent_dtype=torch.float64)
    for step in range(5):
        x = grpo.transition(x, velocity(x, sigmas[step].float().expand(2)), step, sigmas, 0.0).mean
    torch.testing.assert_close(x, expected, rtol=1e-12, atol=1e-12)


def test_a_step_by_hand(grpo: ModuleType) -> None:
    """Sigmas 0.8, 0.4, noise level 0.5: g = 0.5 sqrt(0.8 / 0.2) = 1, pull = 1 / 1.6 = 0.625, delta = -0.4.

    Mean = 2 + (3 + 0.625 (2 + 0.2 * 3)) (-0.4) = 0.15; deviation = sqrt(0.4). The last step: 2 - 0.4 * 3, no noise.
    """
    sigmas = torch.tensor([0.8, 0.4], dtype=torch.float64)
    x, velocity = torch.full((1, 1, 2, 1, 1), 2.0).double(), torch.full((1, 1, 2, 1, 1), 3.0).double()
    move = grpo.transition(x, velocity, 0, sigmas, 0.5)
    assert float(move.mean[0, 0, 0, 0, 0]) == pytest.approx(0.15, abs=1e-12)
    assert move.deviation == pytest.approx(math.sqrt(0.4))
    last = grpo.transition(x, velocity, 1, sigmas, 0.5)
    assert (float(last.mean.flatten()[0]), last.deviation) == (pytest.approx(0.8), 0.0)
    with pytest.raises(ValueError, match="no density"):
        grpo.log_density(x, last)


def test_at_sigma_one_the_second_sigma_stands_in(grpo: ModuleType) -> None:
    """g = a sqrt(1 / (1 - 0.75)) = 2a at sigma 1 of the grid (1, 0.75)."""
    x = torch.zeros(1, 1, 2, 1, 1, dtype=torch.float64)
    move = grpo.transition(x, x, 0, torch.tensor([1.0, 0.75], dtype=torch.float64), 0.7)
    assert move.deviation == pytest.approx(1.4 * math.sqrt(0.25))


def test_log_densities_are_those_of_a_gaussian_without_the_condition_slot(grpo: ModuleType) -> None:
    draws = torch.Generator().manual_seed(1)
    mean, value = torch.randn(2, 3, 2, 4, 2, 2, generator=draws, dtype=torch.float64)
    expected = torch.distributions.Normal(mean[:, :, 1:], 0.3).log_prob(value[:, :, 1:]).flatten(1).mean(dim=1)
    found = grpo.log_density(value, grpo.Transition(mean, 0.3))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    changed = value.clone()
    changed[:, :, 0] += 5.0
    assert torch.equal(grpo.log_density(changed, grpo.Transition(mean, 0.3)), found)


def test_stored_densities_are_those_of_the_stored_latents(grpo: ModuleType) -> None:
    """What the sampler stored is what the objective computes again, so ratios start at exactly 1."""
    kept = sample_gaussian(grpo, 0.7, 6)
    sigmas = sampling_sigmas(6, 1.0, torch.float64)
    assert kept.log_densities.shape == (2, 5)
    for step in range(5):
        before, after = kept.latents[:, step], kept.latents[:, step + 1]
        velocity = gaussian_velocity(0.5, 0.3)(before, sigmas[step].expand(2).float())
        again = grpo.log_density(after, grpo.transition(before, velocity, step, sigmas, 0.7))
        torch.testing.assert_close(again, kept.log_densities[:, step])


def test_the_clipped_objective_by_hand(grpo: ModuleType) -> None:
    """Ratios 1.3, 1.3, 0.7, 0.7 with c = 0.2: gains are cut at 1.2 A, losses at 0.8 A; the other two count in full."""
    log_ratio = torch.tensor([1.3, 1.3, 0.7, 0.7], dtype=torch.float64).log().requires_grad_()
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    loss = grpo.clipped_objective(log_ratio, advantage, 0.2)
    torch.testing.assert_close(loss.detach(), torch.tensor([-1.2, 1.3, -0.7, 0.8], dtype=torch.float64))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert log_ratio.grad is not None
    assert [bool(g != 0) for g in log_ratio.grad] == [False, True, True, False]


def test_best_of_groups_takes_the_highest_r_once_a_group() -> None:
    from arm_objectives import best_of_groups

    rows = [("a", 0, 0.4), ("a", 1, 0.9), ("b", 0, 0.5), ("b", 1, 0.5)]
    samples = [Sample(group, group, k, r, 9) for group, k, r in rows]
    assert [(s.group_id, s.candidate) for s in best_of_groups(samples)] == [("a", 1), ("b", 0)]


def test_judges_err_as_they_say() -> None:
    from arm_judges import JUDGES, POSITION_POINTS, Seen

    seen = Seen(np.full((200, 4), 50.0), np.zeros((200, 4)), seed=5)
    noise = JUDGES["noisy"](seen) - 50.0
    assert (abs(noise.mean()), noise.std()) == (pytest.approx(0.0, abs=3.0), pytest.approx(20.0, rel=0.1))
    offsets = JUDGES["position"](seen) - 50.0
    assert sorted(set(offsets.flatten().tolist())) == [-15.0, -5.0, 5.0, 15.0]
    assert POSITION_POINTS == 30.0
    assert not np.array_equal(offsets[0], offsets[1])
    bright = Seen(np.full((1, 4), 80.0), np.array([[-1.0, 0.0, 2.0, 18.0]]), seed=5)
    np.testing.assert_allclose(JUDGES["bright"](bright), [[0.0, 0.0, 50.0, 90.0]])
    np.testing.assert_allclose(JUDGES["bright_half"](bright), [[40.0, 40.0, 65.0, 85.0]])


def test_all_arms_have_settings_names_and_clips_of_their_own() -> None:
    from arms import FULL, METHODS, config_of, study_arms, timing_arms, tuning_arms

    arms = [*timing_arms(FULL), *tuning_arms(FULL), *study_arms(FULL, {})]
    assert len({arm.name for arm in arms}) == len(arms)
    tuned = {(a.train_clips, a.heldout_clips) for a in arms if a.purpose == "tune"}
    reported = {(a.train_clips, a.heldout_clips) for a in arms if a.purpose != "tune"}
    assert not {seed for pair in tuned for seed in pair} & {seed for pair in reported for seed in pair}
    for arm in arms:
        config = config_of(arm, FULL, samples_per_call=8)
        assert config.conditions_per_batch * config.sampling.candidates == 64
    # Every choice of a grid reaches the config.
    second = next(a for a in study_arms(FULL, {"nft": 1}) if a.method == "shuffled")
    rate = METHODS["nft"].grid[1].overrides["optimizer.learning_rate_full"]
    assert config_of(second, FULL, samples_per_call=8).optimizer.learning_rate_full == rate


def test_the_engine_itself_is_right_at_every_horizon() -> None:
    from arm_data import LONG_FRAMES, true_trajectory
    from arm_judges import horizon

    from stateplay_rl.arena.dataset import CLEAR_CHANGE, draw_condition, render, simulate

    condition = draw_condition(3, 0, "normal", CLEAR_CHANGE)
    longer = true_trajectory(condition, LONG_FRAMES)
    assert np.array_equal(longer.values_TPF[:33], simulate(condition).values_TPF)
    right = horizon(render(longer), longer)
    assert all(values == [1.0] * 12 for values in right.values())
    frozen = np.repeat(render(longer)[:1], LONG_FRAMES, axis=0)
    assert min(horizon(frozen, longer)["hp"]) < 0.6


PARENT = """
import multiprocessing, sys
sys.path.insert(0, sys.argv[1])
import run_study

def idle(connection):
    import threading
    threading.Thread(target=run_study.end_with_parent, daemon=True).start()
    connection.send(multiprocessing.current_process().pid)
    threading.Event().wait()

if __name__ == "__main__":
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    multiprocessing.get_context("spawn").Process(target=idle, args=(theirs,), daemon=True).start()
    print(ours.recv(), flush=True)
    __import__("threading").Event().wait()
"""


def test_workers_end_when_the_study_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(PARENT)
    with subprocess.Popen([sys.executable, str(program), str(STUDY)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        os.kill(worker, 0)
        parent.kill()
        # The worker holds the other end of the output pipe: it closes when the worker is gone.
        assert parent.stdout.read() == ""


@pytest.mark.slow
def test_a_tiny_study_runs_and_resumes(tmp_path: Path) -> None:
    from arms import Scale
    from run_study import main

    scale = Scale(
        seeds=(0,),
        conditions=2,
        batches=1,
        middle_batches=1,
        long_batches=1,
        tune_batches=0,
        heldout=2,
        main=("flow_grpo", "nft"),
        extra=("rejection", "sft_mixture"),
        ablations=(),
        judges=(),
        timed=(),
    )
    options = ["--out", str(tmp_path), "--device", "cpu"]
    assert main([*options, "--only", "nft,base"], scale) == 0
    kept = (tmp_path / "arms" / "main-nft-s0.json").stat().st_mtime_ns
    assert main(options, scale) == 0
    assert (tmp_path / "arms" / "main-nft-s0.json").stat().st_mtime_ns == kept
    results = {p.stem: json.loads(p.read_text()) for p in (tmp_path / "arms").glob("*.json")}
    assert set(results) == {f"main-{m}-s0" for m in ("base", "nft", "flow_grpo", "rejection", "sft_mixture")}
    first = {tuple(r["curve"][0]["by_condition"]) for r in results.values()}
    assert len(first) == 1, "every arm starts from the same policy, on the same held-out noise"
    for name, result in results.items():
        moved = [point["distance"] for point in result["curve"]]
        assert (moved[-1] > 0) == (name != "main-base-s0")
    assert len(results["main-nft-s0"]["final"]["long_horizon"]["hp"]) == 12
    # With live = old at the first step, ratios are 1 and nothing is clipped then.
    assert results["main-flow_grpo-s0"]["clipped_share"] <= 0.5
