"""FSQ codes, straight-through gradients, and a tokenizer that learns to tell changes apart."""

from __future__ import annotations

import itertools

import pytest
import torch

from stateplay_rl.worlds.native.initialise import initialise
from stateplay_rl.worlds.native.presets import TokenizerSizes, tokenizer_sizes_from_shapes
from stateplay_rl.worlds.native.transition_tokenizer import FiniteScalarQuantizer, TransitionTokenizer

SIZES = TokenizerSizes(in_channels=4, width=16, heads=2, state_tokens=4, fsq_levels=(8, 8, 8))


@pytest.fixture
def tokenizer():
    tokenizer = TransitionTokenizer(SIZES)
    initialise(tokenizer, seed=3)
    return tokenizer


def latents(batch=2, slots=5):
    return torch.randn(batch, 4, slots, 4, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("levels", [(8, 8, 8), (8, 5, 5, 5), (4, 3)])
def test_every_code_is_reachable_and_names_its_values(levels):
    quantizer = FiniteScalarQuantizer(levels)
    grid = torch.linspace(-6, 6, 400)
    seen = [quantizer(torch.where(torch.arange(len(levels)) == q, grid[:, None], 0.0)) for q in range(len(levels))]
    for q, (values, codes) in enumerate(seen):
        assert len(values[:, q].unique()) == levels[q] == len(codes.unique())
        assert values.abs().max() <= 1
    combinations = torch.tensor(list(itertools.product((-6.0, 6.0), repeat=len(levels))))
    _, codes = quantizer(combinations)
    total = int(torch.tensor(levels).prod())
    assert (codes.min(), codes.max()) == (0, total - 1)
    assert quantizer.basis.tolist() == [int(torch.tensor(levels[:q]).prod()) for q in range(len(levels))]


def test_rounding_passes_gradients_straight_through():
    z = torch.tensor([[0.3, -0.2, 1.1]], requires_grad=True)
    values, _ = FiniteScalarQuantizer((8, 8, 8))(z)
    values.sum().backward()
    half = 3.5 * 1.001
    expected = (1 - torch.tanh(z + torch.atanh(torch.tensor(0.5 / half))) ** 2) * half / 4
    torch.testing.assert_close(z.grad, expected.detach())


def test_codes_have_the_documented_shape_dtype_and_range(tokenizer):
    codes = tokenizer.encode(latents())
    assert codes.shape == (2, 4, 4)
    assert codes.dtype == torch.int64
    assert codes.min() >= 0
    assert codes.max() < 512
    assert not codes.requires_grad


def test_a_code_depends_on_its_own_pair_of_frames_only(tokenizer):
    x = latents()
    codes = tokenizer.encode(x)
    alone = torch.cat([tokenizer.encode(x[:, :, i : i + 2]) for i in range(4)], dim=1)
    assert torch.equal(codes, alone)


def test_codes_do_not_depend_on_autocast(tokenizer):
    codes = tokenizer.encode(latents())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(tokenizer.encode(latents()), codes)


def test_the_state_dict_holds_what_the_codes_mean(tokenizer):
    state = tokenizer.state_dict()
    assert state["quantizer.levels"].tolist() == [8, 8, 8]
    assert state["quantizer.basis"].tolist() == [1, 8, 64]
    copy = TransitionTokenizer(SIZES)
    copy.load_state_dict(state, strict=True)
    assert torch.equal(copy.encode(latents()), tokenizer.encode(latents()))


def test_sizes_from_the_file(tokenizer):
    header = {name: tuple(value.shape) for name, value in tokenizer.state_dict().items()}
    assert tokenizer_sizes_from_shapes(header, fsq_levels=(8, 8, 8), heads=2) == (SIZES, ("patch",))


def test_the_target_carries_no_gradient(tokenizer):
    """With the codes cut off, nothing is left that could train the features."""
    torch.nn.init.zeros_(tokenizer.from_code.weight)
    loss, _ = tokenizer.training_loss(latents())
    loss.backward()
    assert tokenizer.patch_embedding.weight.grad.abs().max() == 0
    assert tokenizer.decoder[2].bias.grad.abs().max() > 0


def test_training_lowers_the_loss_and_separates_two_kinds_of_change(tokenizer):
    """Frames whose left or right column changes by a constant must end on different codes."""
    generator = torch.Generator().manual_seed(5)
    optimizer = torch.optim.Adam(tokenizer.parameters(), lr=3e-3)

    def batch(size=32):
        x = 0.1 * torch.randn(size, 4, 1, 4, 6, generator=generator)
        after = x.clone()
        side = torch.arange(size) % 2
        after[side == 0, 0, :, :, :2] += 2.0
        after[side == 1, 1, :, :, 4:] -= 2.0
        return torch.cat((x, after), dim=2), side

    losses = []
    for _ in range(60):
        loss, _ = tokenizer.training_loss(batch()[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    x, side = batch()
    codes = tokenizer.encode(x)[:, 0]
    left = {tuple(row) for row in codes[side == 0].tolist()}
    right = {tuple(row) for row in codes[side == 1].tolist()}
    assert not left & right
