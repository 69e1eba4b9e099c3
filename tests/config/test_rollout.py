"""Sampler names, and settings of it that exclude others."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stateplay_rl.config.rollout import SamplingConfig, sampler_settings
from stateplay_rl.config.train_nft import TrainNftConfig


@pytest.mark.parametrize(
    "changes, name",
    [
        ({}, "euler"),
        ({"shift": 2.0}, "euler-shift2"),
        ({"solver": "ab2", "shift": 2.0, "latents": "bfloat16"}, "ab2-shift2-bf16"),
        ({"cache": "taylor", "cache_every": 2, "latents": "bfloat16"}, "euler+taylor2-bf16"),
        ({"solver": "unipc2", "cache": "firstblock", "cache_threshold": 0.05}, "unipc2+firstblock0.05"),
        # What is not in use is not in the name.
        ({"cache_every": 9, "cache_threshold": 0.5}, "euler"),
    ],
)
def test_a_sampler_is_named_after_all_that_makes_other_candidates(changes, name):
    assert SamplingConfig(**changes).sampler == name


def test_the_options_name_stands_for_two_settings():
    assert sampler_settings("dpm2m") == {"sampling.solver": "dpm2m", "sampling.cache": "none"}
    assert sampler_settings("ab2+taylor") == {"sampling.solver": "ab2", "sampling.cache": "taylor"}


def test_ranks_that_share_blocks_cannot_skip_them():
    sampling = {"cache": "firstblock"}
    assert TrainNftConfig(sampling=sampling).sampling.cache == "firstblock"
    with pytest.raises(ValidationError, match="sharded ranks must run together"):
        TrainNftConfig(sampling=sampling, parallel={"strategy": "sharded"})
