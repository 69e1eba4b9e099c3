"""Diffusers' caches on the native transformer: what is skipped and left behind, and what our Taylor cache equals."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from diffusers.hooks import TaylorSeerCacheConfig
from torch import Tensor

from stateplay_rl.nft.samplers import TaylorCache
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.nft.solvers import Euler, pin_first_slot, solve
from stateplay_rl.worlds.native.first_block import first_block_cache
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.world import NativeWorld
from tests.worlds.tiny import tiny_inputs, tiny_world

STEPS = 12


@pytest.fixture(scope="module")
def world() -> NativeWorld:
    return tiny_world()


@torch.no_grad()
def walk(world: NativeWorld, taylor: int | None = None) -> Tensor:
    """Latents that Euler reaches under whatever hooks the transformer has."""
    conditions = world.encode_conditions(tiny_inputs(1))
    states = world.states(conditions)
    velocity = lambda x, sigma_B: world.velocity(x, sigma_B, conditions, states).velocity_BCfHW  # noqa: E731
    noise = torch.randn((1, 4, 3, 4, 4), generator=torch.Generator().manual_seed(5))
    cached = velocity if taylor is None else TaylorCache(velocity, taylor)
    return solve(Euler, cached, noise, sampling_sigmas(STEPS), pin_first_slot(conditions.first_latent_BC1HW))


class Count:
    """Calls of the first and of the last block."""

    def __init__(self, transformer: LatentStateTransformer) -> None:
        self.calls = [0, 0]
        for place, index in ((0, 0), (1, -1)):
            transformer.blocks[index].attn1.to_q.register_forward_hook(lambda *_, k=place: self._add(k))

    def _add(self, place: int) -> None:
        self.calls[place] += 1


def test_blocks_are_skipped_while_the_first_one_changes_little() -> None:
    world = tiny_world()
    count, plain = Count(world.transformer), walk(world)
    assert count.calls == [STEPS, STEPS]
    reached = []
    for threshold in (1e-9, 0.05, 1e9):
        before = list(count.calls)
        with first_block_cache(world.transformer, threshold):
            reached.append(walk(world))
        first, last = (now - then for now, then in zip(count.calls, before, strict=True))
        assert first == STEPS
        assert {1e-9: last == STEPS, 0.05: 1 < last < STEPS, 1e9: last == 1}[threshold]
    assert torch.equal(reached[0], plain)
    errors = [float((x - plain).abs().max()) for x in reached]
    assert all(a < b for a, b in pairwise(errors))


def test_nothing_is_left_behind(world: NativeWorld) -> None:
    """Neither after the block nor after an error inside it; and no trajectory sees another's residuals."""
    plain = walk(world)
    runs = []
    for _ in range(2):
        with first_block_cache(world.transformer, 0.05):
            runs.append(walk(world))
    assert torch.equal(*runs)
    with pytest.raises(RuntimeError, match="stopped"), first_block_cache(world.transformer, 0.05):
        raise RuntimeError("stopped")
    assert torch.equal(walk(world), plain)
    assert not world.transformer.is_cache_enabled


def test_the_taylor_cache_is_the_hooks_lite_mode(world: NativeWorld) -> None:
    """The hook skips all blocks and extrapolates the last layer's output: a velocity before it is put in place."""
    settings = TaylorSeerCacheConfig(cache_interval=3, max_order=1, taylor_factors_dtype=torch.float32)
    world.transformer.enable_cache(replace(settings, use_lite_mode=True))
    try:
        with world.transformer.cache_context("sampling"):
            hooked = walk(world)
    finally:
        world.transformer.disable_cache()
    assert torch.allclose(hooked, walk(world, taylor=3), atol=1e-5)
    assert not torch.allclose(hooked, walk(world), atol=1e-4)


def test_taylor_seer_attaches_to_nothing_by_default(world: NativeWorld) -> None:
    """Its patterns must match a whole module name, and none of a Wan transformer ends in `attn`.

    A hook that was attached would ask for the cache's context, which is not given here.
    """
    plain = walk(world)
    world.transformer.enable_cache(TaylorSeerCacheConfig())
    try:
        assert torch.equal(walk(world), plain)
    finally:
        world.transformer.disable_cache()
