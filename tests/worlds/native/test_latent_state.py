"""State sequences: what they depend on, which parameters a loss reaches, clips of any length."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from stateplay_rl.worlds.native import coupling_lora
from stateplay_rl.worlds.native.latent_state import sincos_grid


def sequence(model, x):
    return model.state_sequence(x.latents_BCfHW[:, :, :1], x.action_bins_BfK)


def cross_entropy(model, x):
    low, _ = sequence(model, x)
    logits = model.transition_logits(low, x.action_bins_BfK)
    return F.cross_entropy(logits.flatten(0, 2), torch.zeros(logits[..., 0].numel(), dtype=torch.long))


def test_shapes(model, inputs):
    low, tokens = sequence(model, inputs)
    assert low.shape == (3, 4, 3, 16)
    assert tokens.shape == (3, 12, 48)
    assert model.transition_logits(low, inputs.action_bins_BfK).shape == (3, 3, 3, 64)
    projected = model.latent_state_rollout.output_projection(low)
    assert torch.equal(tokens.unflatten(1, (4, 3)), projected)


def test_the_sequence_depends_on_first_frame_and_earlier_actions_only(model, inputs):
    """Action bin i moves states i+1..; the last bin and later frames move nothing."""
    with torch.no_grad():
        low, _ = sequence(model, inputs)
        for i in range(4):
            bins = inputs.action_bins_BfK.clone()
            bins[:, i] = 1 - bins[:, i]
            other, _ = model.state_sequence(inputs.latents_BCfHW[:, :, :1], bins)
            assert (other != low).flatten(2).any(2).all(0).tolist() == [slot > i for slot in range(4)]
        first = inputs.latents_BCfHW[:, :, :1] + 1
        other, _ = model.state_sequence(first, inputs.action_bins_BfK)
        assert (other != low).flatten(2).any(2).all()


def test_the_initializer_reads_positions(model, inputs):
    """Mirrored first frames hold the same patches at other places, and give another state."""
    first = inputs.latents_BCfHW[:, :, :1]
    columns = first.unflatten(4, (3, 2)).flip(4).flatten(4, 5)
    with torch.no_grad():
        low, _ = model.state_sequence(first, inputs.action_bins_BfK)
        mirrored, _ = model.state_sequence(columns, inputs.action_bins_BfK)
    assert not torch.allclose(low, mirrored, atol=1e-3)


def test_longer_clips_continue_the_same_sequence(model, inputs_factory):
    long = inputs_factory(slots=40)
    with torch.no_grad():
        low, _ = sequence(model, long)
        short, _ = model.state_sequence(long.latents_BCfHW[:, :, :1], long.action_bins_BfK[:, :9])
    assert torch.isfinite(low).all()
    torch.testing.assert_close(low[:, :9], short)


def test_state_logits_use_the_state_before_the_step(model, inputs):
    """Logits of step i depend on states up to i and on bin i, not on the state after the step."""
    low, _ = sequence(model, inputs)
    with torch.no_grad():
        logits = model.transition_logits(low, inputs.action_bins_BfK)
        changed = low.clone()
        changed[:, 2] += 1
        other = model.transition_logits(changed, inputs.action_bins_BfK)
    assert (other != logits).flatten(2).any(2).all(0).tolist() == [False, False, True]


def test_cross_entropy_reaches_module_b_only_from_the_second_step(model_factory, inputs_factory):
    for slots in (2, 3, 5):
        model = model_factory()
        cross_entropy(model, inputs_factory(slots=slots)).backward()
        grads = {name: p.grad for name, p in model.latent_state_rollout.transition.named_parameters()}
        reached = [name for name, grad in grads.items() if grad is not None and grad.abs().max() > 0]
        assert reached == ([] if slots == 2 else list(grads))


def test_cross_entropy_is_a_constant_when_only_the_coupling_trains(model, inputs):
    model.requires_grad_(False)
    names = coupling_lora.inject(model, seed=0)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    assert not cross_entropy(model, inputs).requires_grad


def test_the_rollout_ignores_autocast(model, inputs):
    with torch.no_grad():
        low, _ = sequence(model, inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            patches = model._patch_tokens(inputs.latents_BCfHW[:, :, :1]).float()
            other, _ = model.latent_state_rollout(patches.flatten(1, 3), (2, 3), inputs.action_bins_BfK)
    assert other.dtype == low.dtype == torch.float32


def test_positions_are_distinct():
    grid = sincos_grid(5, 7, 16, torch.device("cpu"))
    assert grid.shape == (35, 16)
    assert (torch.cdist(grid, grid) + torch.eye(35)).min() > 0.1
