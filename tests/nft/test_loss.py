"""The policy loss: golden vectors, hand values, properties, precision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from stateplay_rl.nft.forward import noised
from stateplay_rl.nft.loss import nft_loss, paper_velocity_mse

GOLDEN = Path(__file__).parents[1] / "golden" / "nft_loss.safetensors"


def golden_cases():
    with safe_open(GOLDEN, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        for case in json.loads(file.metadata()["cases"]):
            prefix = f"case{case['case']}."
            yield case, {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def relative(got, wanted):
    return float((got - wanted).detach().abs().max() / wanted.abs().max())


@pytest.mark.parametrize(("case", "tensors"), golden_cases())
def test_golden_to_1e_12_with_gradient(case, tensors):
    v_live = tensors["v_live"].clone().requires_grad_()
    sample = noised(tensors["x0"], tensors["noise"], tensors["sigma"])
    settings_ = {k: case[k] for k in ("beta_nft", "advantage_clip")}
    result = nft_loss(sample, v_live, tensors["v_old"], tensors["r"], **settings_, has_condition_slot=False)
    result.mean.backward()
    assert relative(result.pos, tensors["loss_pos"]) < 1e-12
    assert relative(result.neg, tensors["loss_neg"]) < 1e-12
    assert relative(result.loss_per_sample, tensors["loss_per_sample"]) < 1e-12
    assert relative(result.mean, tensors["loss"]) < 1e-12
    assert relative(v_live.grad, tensors["grad_v_live"]) < 1e-12


@pytest.mark.parametrize(("case", "tensors"), golden_cases())
def test_float32_agrees_with_float64(case, tensors):
    single = {k: v.float() for k, v in tensors.items()}
    sample = noised(single["x0"], single["noise"], single["sigma"])
    settings_ = {k: case[k] for k in ("beta_nft", "advantage_clip")}
    result = nft_loss(sample, single["v_live"], single["v_old"], single["r"], **settings_, has_condition_slot=False)
    assert result.loss_per_sample.dtype == torch.float32
    assert relative(result.loss_per_sample.double(), tensors["loss_per_sample"]) < 1e-5


def random_sample(seed, batch=2, slots=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(batch, 2, slots, 2, 2, generator=generator, dtype=dtype)  # noqa: E731
    sigma = torch.rand(batch, generator=generator, dtype=dtype) * 0.9 + 0.1
    sample = noised(draw(), draw(), sigma, draw()[:, :, :1])
    return sample, draw(), draw()


def test_hand_values_of_one_element():
    """x0 = 0, eps = 1, sigma = 1/2 -> x_s = 1/2; v_old = 0, v_live = 2, b = 1/2 -> v_pos = 1, v_neg = -1.

    e_pos = 1/2 - 1/2 = 0, e_neg = 1/2 + 1/2 = 1: L_pos = 0 / 1e-5 = 0, L_neg = 1/1 = 1.
    r = 1/4, clip 5: loss = 5 / 0.5 * (1/4 * 0 + 3/4 * 1) = 7.5. The paper's: v = 1, |1-1|^2 = 0, |-1-1|^2 =
    4, so 3/4 * 4 = 3.
    """
    shape = (1, 1, 2, 1, 1)
    sample = noised(torch.zeros(shape), torch.ones(shape), torch.tensor([0.5]))
    live, old, r = torch.full(shape, 2.0), torch.zeros(shape), torch.tensor([0.25])
    result = nft_loss(sample, live, old, r, beta_nft=0.5, advantage_clip=5.0, has_condition_slot=True)
    assert (result.pos.item(), result.neg.item(), result.mean.item()) == (0.0, 1.0, 7.5)
    paper = paper_velocity_mse(sample, live, old, r, beta_nft=0.5, has_condition_slot=True)
    assert (paper.pos.item(), paper.neg.item(), paper.mean.item()) == (0.0, 4.0, 3.0)


LOSSES = [
    lambda *a, **k: nft_loss(*a, advantage_clip=5.0, **k),
    paper_velocity_mse,
]


def full(r):
    return torch.full((2,), r, dtype=torch.float64)


SEEDS, SHARES, BETAS = st.integers(0, 2**20), st.floats(0.0, 1.0), st.floats(0.05, 2.0)


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, left=SHARES, right=SHARES, beta_nft=BETAS)
def test_at_equal_policies_the_loss_does_not_depend_on_r(loss, seed, left, right, beta_nft):
    sample, v, _ = random_sample(seed)
    values = [
        loss(sample, v, v, full(r), beta_nft=beta_nft, has_condition_slot=True).mean.item() for r in (left, right)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, r=SHARES, beta_nft=BETAS)
def test_at_equal_policies_the_gradient_is_odd_about_one_half(loss, seed, r, beta_nft):
    """g(r) = -g(1 - r) and g(1/2) = 0: a tied group teaches nothing."""
    sample, v, _ = random_sample(seed)

    def gradient(value):
        live = v.clone().requires_grad_()
        r_B = torch.full((2,), value, dtype=torch.float64)
        loss(sample, live, v, r_B, beta_nft=beta_nft, has_condition_slot=True).mean.backward()
        return live.grad

    scale = gradient(1.0).abs().max() + 1e-300
    assert ((gradient(r) + gradient(1 - r)).abs().max() / scale) < 1e-10
    assert (gradient(0.5).abs().max() / scale) < 1e-12
    assert scale > 1e-6, "the property would hold trivially"


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, r=SHARES, beta_nft=BETAS)
def test_mirrored_step_and_optimality_change_nothing(loss, seed, r, beta_nft):
    """(v_live - v_old, r) -> (-(v_live - v_old), 1 - r) swaps the positive and the negative branch."""
    sample, old, live = random_sample(seed)
    one = loss(sample, live, old, full(r), beta_nft=beta_nft, has_condition_slot=True)
    two = loss(sample, 2 * old - live, old, full(1 - r), beta_nft=beta_nft, has_condition_slot=True)
    assert one.mean.item() == pytest.approx(two.mean.item(), rel=1e-10)
    assert torch.allclose(one.pos, two.neg, rtol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
def test_slot_zero_is_outside_everything(loss):
    """Neither value nor gradient sees slot 0, and cutting it off before gives the same."""
    sample, old, live = random_sample(3)
    r = torch.tensor([0.2, 0.9], dtype=torch.float64)
    live = live.requires_grad_()
    with_slot = loss(sample, live, old, r, beta_nft=1.0, has_condition_slot=True)
    with_slot.mean.backward()
    assert bool((live.grad[:, :, 0] == 0).all())
    assert bool((live.grad[:, :, 1:] != 0).all())
    cut = noised(sample.x0[:, :, 1:], sample.eps[:, :, 1:], sample.sigma_B)
    without = loss(cut, live[:, :, 1:], old[:, :, 1:], r, beta_nft=1.0, has_condition_slot=False)
    assert torch.equal(with_slot.loss_per_sample, without.loss_per_sample)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_batch_is_its_samples(loss):
    sample, old, live = random_sample(4, batch=5)
    r = torch.linspace(0, 1, 5, dtype=torch.float64)
    together = loss(sample, live, old, r, beta_nft=1.0, has_condition_slot=True).loss_per_sample
    for i in range(5):
        s = slice(i, i + 1)
        one = noised(sample.x0[s], sample.eps[s], sample.sigma_B[s], sample.x_sigma[s, :, :1])
        alone = loss(one, live[s], old[s], r[s], beta_nft=1.0, has_condition_slot=True).loss_per_sample
        assert alone.item() == pytest.approx(together[i].item(), rel=1e-13)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_old_policy_gets_no_gradient(loss):
    sample, old, live = random_sample(5)
    old, live = old.requires_grad_(), live.requires_grad_()
    loss(sample, live, old, torch.ones(2), beta_nft=1.0, has_condition_slot=True).mean.backward()
    assert old.grad is None
    assert live.grad is not None


def test_scale_has_a_floor_and_no_gradient():
    """A perfect prediction: e = 0, so L = 0 / 1e-5 = 0 and the gradient is finite (0), not NaN."""
    sample, _, _ = random_sample(6)
    live = sample.velocity_target.clone().requires_grad_()
    result = nft_loss(sample, live, live, torch.ones(2), beta_nft=1.0, advantage_clip=5.0, has_condition_slot=True)
    result.mean.backward()
    assert result.mean.item() == pytest.approx(0.0, abs=1e-20)
    assert bool(torch.isfinite(live.grad).all())


def test_half_precision_velocities_are_summed_in_float32():
    sample, old, live = random_sample(7, dtype=torch.float32)
    r = torch.tensor([0.3, 0.8])
    result = nft_loss(
        sample, live.bfloat16(), old.bfloat16(), r, beta_nft=1.0, advantage_clip=5.0, has_condition_slot=True
    )
    exact = nft_loss(
        sample,
        live.bfloat16().double(),
        old.bfloat16().double(),
        r,
        beta_nft=1.0,
        advantage_clip=5.0,
        has_condition_slot=True,
    )
    assert result.loss_per_sample.dtype == torch.float32
    assert relative(result.loss_per_sample.double(), exact.loss_per_sample.double()) < 1e-5


@pytest.mark.parametrize(
    ("r", "beta_nft", "message"),
    [
        ([1.2, 0.0], 1.0, "outside"),
        ([float("nan"), 0.0], 1.0, "outside"),
        ([0.5], 1.0, "one r"),
        ([1, 1], 0.0, "beta"),
    ],
)
def test_impossible_arguments_are_refused(r, beta_nft, message):
    sample, old, live = random_sample(8)
    with pytest.raises(ValueError, match=message):
        paper_velocity_mse(sample, live, old, torch.tensor(r), beta_nft=beta_nft, has_condition_slot=True)
    with pytest.raises(ValueError, match="velocities"):
        paper_velocity_mse(sample, live[:1], old, torch.ones(2), beta_nft=1.0, has_condition_slot=True)
