"""The language model's pass: the class's own numbers, logits at the asked places only, a decoder that can step back."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from stateplay_rl.reward_model.base_model import BaseModel
from stateplay_rl.reward_model.fixed_decoder import FixedDecoder
from stateplay_rl.reward_model.inputs import GroupReader
from stateplay_rl.reward_model.language import Decoder, answer_logits, embed
from stateplay_rl.reward_model.learning import GroupInput
from tests.reward_model.small_groups import payload_of


@pytest.fixture
def group(base: BaseModel) -> GroupInput:
    return GroupReader(base).training_input(payload_of(2), (0, 7, 100, 35))


def test_logits_are_those_of_the_class_from_pixels(base: BaseModel, group: GroupInput) -> None:
    payload, read = payload_of(2), base.pictures
    ids = torch.tensor([group.ids])
    grid_thw = torch.tensor([[1, grid.rows, grid.columns] for grid in group.grids])
    with torch.no_grad():
        expected = base.model(
            input_ids=ids,
            pixel_values=torch.cat(
                [read.patches(torch.tensor(read.pixels(image.jpeg)[None]))[0] for image in payload.images]
            ),
            image_grid_thw=grid_thw,
            mm_token_type_ids=(ids == base.chat.image_id).int(),
        ).logits[0, -group.answer_tokens - 1 : -1]
        found = answer_logits(
            base.model, embed(base.model, group.ids, group.features, group.grids), group.answer_tokens
        )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_vocabulary_is_met_at_the_answer_only(
    base: BaseModel, group: GroupInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    base.model.lm_head.register_forward_hook(lambda module, given, out: rows.append(given[0].shape[-2]))
    with torch.no_grad():
        answer_logits(base.model, embed(base.model, group.ids, group.features, group.grids), group.answer_tokens)
    assert rows == [group.answer_tokens]


def test_decoding_token_by_token_or_in_pieces_is_one_pass(base: BaseModel, group: GroupInput) -> None:
    prompt, answer = group.ids[: -group.answer_tokens], group.ids[-group.answer_tokens :]
    with torch.no_grad():
        whole = answer_logits(
            base.model, embed(base.model, group.ids, group.features, group.grids), group.answer_tokens
        )
    for piece in (1, 5):
        decoder = Decoder(base.model)
        logits = [decoder.prefill(embed(base.model, prompt, group.features, group.grids), keep=1)]
        for start in range(0, len(answer) - 1, piece):
            logits.append(decoder.add(answer[start : min(start + piece, len(answer) - 1)]))
        torch.testing.assert_close(torch.cat(logits), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [Decoder, partial(FixedDecoder, kernels=False, captured=False)])
def test_stepping_back_forgets_what_was_tried(base: BaseModel, group: GroupInput, make: Any) -> None:
    prompt, answer = group.ids[: -group.answer_tokens], group.ids[-group.answer_tokens :]
    decoder = make(base.model)
    decoder.prefill(embed(base.model, prompt, group.features, group.grids), keep=1)
    state = decoder.state()
    first = decoder.add(answer[:3])
    decoder.back_to(state)
    decoder.add(answer[4:6])
    decoder.add(answer[6:7])
    decoder.back_to(state)
    assert torch.equal(decoder.add(answer[:3]), first)


def test_features_that_do_not_fit_are_refused(base: BaseModel, group: GroupInput) -> None:
    with pytest.raises(ValueError, match="visual features"):
        embed(base.model, group.ids, list(group.features)[:-1], group.grids)
