"""Prompts, tokens and the text encoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stateplay_rl.errors import InputError
from stateplay_rl.worlds.native.text import (
    TEXT_PRESETS,
    TextEncoder,
    build_text_model,
    load_tokenizer,
    train_tokenizer,
)
from tests.worlds.tiny import PROMPTS, TINY_TEXT, tiny_modules


@pytest.fixture
def encoder(tmp_path: Path) -> TextEncoder:
    return tiny_modules(tmp_path).text


def test_the_tokenizer_file_depends_on_the_set_of_texts_only(tmp_path: Path) -> None:
    count = train_tokenizer(PROMPTS, tmp_path / "a.json")
    train_tokenizer(reversed(PROMPTS), tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert len(load_tokenizer(tmp_path / "a.json")) == count


def test_prompts_are_cleaned_padded_and_ended(encoder: TextEncoder) -> None:
    ids, mask = encoder.tokenise(["NPC strategy:  Rush. ", "NPC strategy: Rush."])
    assert torch.equal(ids[0], ids[1])
    assert ids.shape == (2, 16)
    # NPC, strategy, :, Rush, . and the end mark
    assert mask[0].sum() == 6
    assert (ids[0, 6:] == 0).all()
    assert ids[0, 5] == 1


def test_a_long_prompt_is_cut_and_keeps_its_end_mark(encoder: TextEncoder) -> None:
    ids, mask = encoder.tokenise(["rush " * 40])
    assert mask.all()
    assert ids[0, -1] == 1


def test_positions_past_the_prompt_are_zero_and_prompts_differ(encoder: TextEncoder) -> None:
    contexts = encoder.encode(list(PROMPTS))
    for row, prompt in enumerate(PROMPTS):
        used = encoder.length(prompt)
        assert (contexts[row, used:] == 0).all()
        assert contexts[row, :used].abs().sum() > 0
    assert not torch.equal(contexts[0], contexts[1])


def test_a_context_does_not_depend_on_its_batch_or_the_cache(encoder: TextEncoder, tmp_path: Path) -> None:
    together = encoder.encode(list(PROMPTS))
    fresh = tiny_modules(tmp_path).text
    for row in reversed(range(len(PROMPTS))):
        assert torch.equal(fresh.encode([PROMPTS[row]])[0], together[row])
    assert torch.equal(encoder.encode([PROMPTS[2], PROMPTS[0]]), together[[2, 0]])


def test_the_cache_is_bounded(encoder: TextEncoder) -> None:
    expected = encoder.encode(list(PROMPTS))
    # Room for one context of 8 tokens x 16 floats: the next new prompt drives the others out.
    encoder.cache_bytes = 8 * 16 * 4
    encoder.encode(["It blocks high."])
    assert len(encoder._contexts) == 1
    assert torch.equal(encoder.encode([*PROMPTS, *PROMPTS]), expected.repeat(2, 1, 1))


def test_a_parked_encoder_gives_the_same_contexts_and_keeps_its_weights(encoder: TextEncoder) -> None:
    expected = encoder.encode(list(PROMPTS))
    encoder._contexts.clear()
    places = [parameter.data_ptr() for parameter in encoder.model.parameters()]
    encoder.park()
    assert torch.equal(encoder.encode(list(PROMPTS)), expected)
    assert [parameter.data_ptr() for parameter in encoder.model.parameters()] == places
    assert encoder.device == torch.device("cpu")


def test_weights_round_trip_without_the_tied_copy(encoder: TextEncoder, tmp_path: Path) -> None:
    weights = encoder.export_weights()
    assert "encoder.embed_tokens.weight" not in weights
    again = TextEncoder.from_weights(TINY_TEXT, weights, tmp_path / "tokenizer.json", "file")
    assert torch.equal(again.encode(list(PROMPTS)), encoder.encode(list(PROMPTS)))


def test_bad_files_are_refused_by_name(encoder: TextEncoder, tmp_path: Path) -> None:
    weights = encoder.export_weights()
    small = {**weights, "shared.weight": weights["shared.weight"][:4]}
    with pytest.raises(InputError, match="only 4 embeddings"):
        TextEncoder.from_weights(TINY_TEXT, small, tmp_path / "tokenizer.json", "file")
    with pytest.raises(InputError, match=r"shared\.weight is missing"):
        TextEncoder.from_weights(TINY_TEXT, {}, tmp_path / "tokenizer.json", "file")
    with pytest.raises(InputError, match="not found"):
        load_tokenizer(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer"):
        load_tokenizer(tmp_path / "broken.json")


def test_arena_preset_is_tiny() -> None:
    model = build_text_model(TEXT_PRESETS["arena"], 64)
    assert sum(p.numel() for p in model.parameters()) < 40_000
    assert not any(p.requires_grad for p in model.parameters())
