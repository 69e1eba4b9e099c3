"""The grids against hand values and against the files computed by the public scheduler."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from stateplay_rl.nft.schedule import TrainingGrid, model_timestep, next_sigmas, sampling_sigmas

GOLDEN = load_file(Path(__file__).parents[1] / "golden" / "wan_schedule.safetensors")
GRIDS = sorted(key.removesuffix(".sigmas") for key in GOLDEN if re.match(r"sampling.*\.sigmas", key))


def test_hand_values():
    """u = 1, 3/4, 1/2, 1/4; 5u/(1+4u) = 1, 3.75/4 = 15/16, 2.5/3 = 5/6, 1.25/2 = 5/8."""
    sigmas = sampling_sigmas(4, 5.0, torch.float64)
    assert torch.allclose(sigmas, torch.tensor([1, 15 / 16, 5 / 6, 5 / 8], dtype=torch.float64), atol=1e-15)
    assert next_sigmas(sigmas).tolist() == [*sigmas[1:].tolist(), 0.0]
    assert model_timestep(sigmas)[1] == pytest.approx(937.5)


def test_last_sigma_of_thirty_steps_is_not_the_librarys():
    """u = 1/30: 5/30 / (1 + 4/30) = 5/34 = 0.1471; a twice shifted minimum would give 0.0244."""
    assert float(sampling_sigmas(30)[-1]) == pytest.approx(5 / 34, abs=1e-7)


@pytest.mark.parametrize("name", GRIDS)
def test_sampling_grid_is_golden(name):
    steps, shift = re.fullmatch(r"sampling(\d+)(?:_shift([\d.]+))?", name).groups()
    sigmas = sampling_sigmas(int(steps), float(shift or 5))
    assert (sigmas - GOLDEN[f"{name}.sigmas"]).abs().max() <= 1e-6
    if f"{name}.timesteps" in GOLDEN:
        assert torch.allclose(model_timestep(sigmas), GOLDEN[f"{name}.timesteps"], rtol=1e-6, atol=0)


def test_training_grid_is_golden():
    grid = TrainingGrid.build()
    for field in ("sigmas", "timesteps", "weights"):
        assert (getattr(grid, field) - GOLDEN[f"training1000.{field}"]).abs().max() <= 1e-6
    assert len(grid) == 1000
    assert float(grid.weights.mean()) == pytest.approx(1.0, abs=1e-6)


def test_training_grid_lookup():
    grid = TrainingGrid.build()
    sigma_B, weight_B = grid.at(torch.tensor([0, 833]))
    assert float(sigma_B[0]) == 1.0
    assert float(weight_B[0]) == 0.0
    assert weight_B[1] == grid.weights.max()


def test_other_training_length_is_rescaled_and_lifted():
    """Length 10: the lowest weight 0 becomes the second one, by the public trainer's empirical rule."""
    grid = TrainingGrid.build(10)
    assert float(grid.weights[0]) > 0
    assert float(grid.weights[1]) == pytest.approx(2 * float(grid.weights[0]), rel=1e-6)


@given(st.integers(1, 200), st.floats(0.1, 20.0))
def test_grid_falls_from_one_and_stays_above_zero(steps, shift):
    sigmas = sampling_sigmas(steps, shift, torch.float64)
    assert sigmas.shape == (steps,)
    assert float(sigmas[0]) == pytest.approx(1.0)
    assert bool((sigmas > 0).all())
    assert bool((next_sigmas(sigmas) < sigmas).all())


@pytest.mark.parametrize(("steps", "shift"), [(0, 5.0), (4, 0.0), (4, -1.0), (4, float("nan"))])
def test_impossible_grids_are_refused(steps, shift):
    with pytest.raises(ValueError, match="grid"):
        sampling_sigmas(steps, shift)
