"""A complete native world of arena's sizes as files, random weights, ready to audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stateplay_rl.worlds.native.initialise import initialise
from stateplay_rl.worlds.native.presets import preset
from stateplay_rl.worlds.native.text import TEXT_PRESETS, TextEncoder, build_text_model, load_tokenizer, train_tokenizer
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.transition_tokenizer import TransitionTokenizer
from stateplay_rl.worlds.native.vae import VAE_PRESETS, VideoVae
from stateplay_rl.worlds.native.world import NativeModules
from tests.checks.audit.audit_world import world_text
from tests.worlds.files import write_world_files


@pytest.fixture
def write_native_world(tmp_path: Path) -> Callable[[], Path]:
    """Write the world's files with open gates; returns the folder."""

    def write() -> Path:
        sizes = preset("arena")
        transformer = LatentStateTransformer(sizes.transformer, sizes.latent_state)
        tokenizer = TransitionTokenizer(sizes.tokenizer)
        initialise(transformer, 0)
        initialise(tokenizer, 1)
        with torch.no_grad():
            transformer.proj_out.weight.normal_(std=0.05, generator=torch.Generator().manual_seed(0))
            for block in transformer.blocks:
                block.latent_state_attention.gate.fill_(0.5)
        rows = train_tokenizer(["npc active behavior walk left strategy passive guarding"], tmp_path / "words.json")
        text_model = build_text_model(TEXT_PRESETS["arena"], rows)
        text = TextEncoder(TEXT_PRESETS["arena"], text_model, load_tokenizer(tmp_path / "words.json"))
        folder = tmp_path / "native"
        folder.mkdir()
        modules = NativeModules(transformer, tokenizer, VideoVae(VAE_PRESETS["arena"]), text)
        write_world_files(folder, modules, tmp_path / "words.json", {"seed": "0"})
        (folder / "world.yaml").write_text(world_text("trial"))
        return folder

    return write
