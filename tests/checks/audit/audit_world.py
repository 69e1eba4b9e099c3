"""A complete arena world as files, with random numbers in them: names and shapes are the model's own."""

from __future__ import annotations

import numpy as np

from stateplay_rl.checks.audit.expected import (
    ANY_SIZE,
    TEXT_ENCODER,
    TOKENIZER,
    TRANSFORMER,
    VAE,
    ExpectedTensor,
)

FILES = {
    TRANSFORMER: "latent_world.safetensors",
    TOKENIZER: "transition_tokenizer.safetensors",
    VAE: "vae.safetensors",
    TEXT_ENCODER: "text_encoder.safetensors",
}
VOCABULARY = 40
Arrays = dict[str, np.ndarray]


def random_values(tensor: ExpectedTensor, rng: np.random.Generator) -> np.ndarray:
    if tensor.name == "quantizer.levels":
        return np.array([8, 8, 8], np.int64)
    if tensor.name == "quantizer.basis":
        return np.array([1, 8, 64], np.int64)
    shape = [VOCABULARY if size == ANY_SIZE else size for size in tensor.shape]
    return rng.normal(size=shape).astype(np.float32)


def world_text(name: str) -> str:
    """A world file for the files of `FILES` beside it."""
    return "\n".join(
        [
            f"name: {name}",
            "preset: arena",
            "frame_height: 64",
            "frame_width: 96",
            "compute_dtype: float32",
            "device: cpu",
            "files:",
            f"  checkpoint: {FILES[TRANSFORMER]}",
            f"  transition_tokenizer: {FILES[TOKENIZER]}",
            f"  vae: {FILES[VAE]}",
            f"  text_encoder: {FILES[TEXT_ENCODER]}",
            "  text_tokenizer: text_tokenizer.json",
            "",
        ]
    )
