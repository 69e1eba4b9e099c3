"""Random weights of the real shapes: what a profile runs on."""

from __future__ import annotations

import pytest
import torch

from stateplay_rl.errors import UsageError
from stateplay_rl.worlds.native.random_world import GATE, random_spec, random_transformer, random_world, sizes_of

CPU = torch.device("cpu")


def test_equal_weights_every_time_in_the_dtypes_of_a_loaded_world() -> None:
    first, second = (random_transformer(sizes_of("arena").networks, CPU, torch.bfloat16) for _ in range(2))
    for (name, left), right in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(left, right), name
        small = name.startswith(("latent_state_rollout", "transition_predictor"))
        assert left.dtype == (torch.float32 if small else torch.bfloat16), name
    gates = [value for name, value in first.named_parameters() if name.endswith(".gate")]
    assert len(gates) == 5
    assert all(float(gate) == torch.tensor(GATE, dtype=torch.bfloat16) for gate in gates)


def test_a_world_that_samples_but_has_no_text_encoder() -> None:
    world = random_world(sizes_of("arena"), CPU, torch.float32, checkpointing="selective")
    assert world.transformer.checkpointing == "selective"
    assert world.encode_video(torch.zeros(5, 64, 96, 3, dtype=torch.uint8).numpy()).shape == (16, 2, 8, 12)
    with pytest.raises(UsageError, match="no text encoder for 1 prompts"):
        world.modules.text.encode(["fight"])
    assert (
        random_spec(sizes_of("stateplay-5b")).frame_height,
        random_spec(sizes_of("stateplay-5b")).latent_frames(97),
    ) == (480, 25)
