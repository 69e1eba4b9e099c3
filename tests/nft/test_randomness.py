"""Counter-based draws: stable, independent of order, and apart from the global generator."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stateplay_rl.nft.randomness import DrawKey, choice, index, normal, permutation

KEY = DrawKey(run_seed=7, purpose="eps", batch=3, inner_pass=1, condition="abc", candidate=2)


def test_seed_is_the_documented_hash():
    """SHA-256 of [7, "eps", 3, 1, "abc", 2], first 8 bytes, shifted right once: never to change."""
    assert KEY.seed() == 880630680736443103


def test_every_field_matters():
    changed = [
        replace(KEY, run_seed=8),
        replace(KEY, purpose="sigma"),
        replace(KEY, batch=4),
        replace(KEY, inner_pass=0),
        replace(KEY, condition="abd"),
        replace(KEY, candidate=3),
    ]
    seeds = {key.seed() for key in [KEY, *changed]}
    assert len(seeds) == 7
    assert not torch.equal(normal(KEY, (4,)), normal(changed[0], (4,)))


def test_fields_do_not_run_into_each_other():
    assert DrawKey(1, "a", condition="1").seed() != DrawKey(1, "a1", condition="").seed()
    assert DrawKey(1, "a", batch=1, inner_pass=11).seed() != DrawKey(1, "a", batch=11, inner_pass=1).seed()


def test_a_draw_does_not_depend_on_others_and_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    first = normal(KEY, (2, 3))
    normal(replace(KEY, candidate=0), (100,))
    torch.rand(1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(first, normal(KEY, (2, 3)))
    permutation(KEY, 5)
    index(KEY, 5)
    assert torch.equal(state, torch.get_rng_state())


def test_a_recorded_seed_reproduces_the_draw():
    assert torch.equal(normal(KEY, (5,)), normal(KEY.seed(), (5,)))
    assert normal(KEY, (5,)).dtype == torch.float32


def test_choice_and_permutation_cover_their_range():
    values = torch.tensor([0.25, 0.5, 1.0])
    seen = {float(choice(replace(KEY, candidate=k), values)) for k in range(60)}
    assert seen == {0.25, 0.5, 1.0}
    assert sorted(permutation(KEY, 28)) == list(range(28))
    assert permutation(KEY, 28) != permutation(replace(KEY, batch=4), 28)
    with pytest.raises(ValueError, match="one of 0"):
        index(KEY, 0)
