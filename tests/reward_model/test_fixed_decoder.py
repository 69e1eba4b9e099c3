"""The decoder with a cache of fixed size: the logits of the one that grows, prompt after prompt; graphs on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from stateplay_rl.reward_model.base_model import BaseModel
from stateplay_rl.reward_model.captured import Captured, WeightsWatch, weights_state
from stateplay_rl.reward_model.fixed_decoder import FixedDecoder
from stateplay_rl.reward_model.inputs import GroupReader
from stateplay_rl.reward_model.language import AnswerDecoder, Decoder, embed
from stateplay_rl.reward_model.learning import GroupInput
from stateplay_rl.reward_model.reading import Reading, read_scores
from tests.reward_model.kernel_runs import DEVICE, runs_kernels
from tests.reward_model.small_groups import LABELS, payload_of


@pytest.fixture
def groups(base: BaseModel) -> list[GroupInput]:
    """The second one is longer: it shows its first picture twice."""
    long = payload_of(3)
    payloads = (payload_of(2), replace(long, parts=(*long.parts, *long.parts[1:3])), payload_of(4))
    return [GroupReader(base).training_input(payload, (0, 7, 100, 35)) for payload in payloads]


def logits(decoder: AnswerDecoder, group: GroupInput, pieces: tuple[int, ...]) -> torch.Tensor:
    """Of the prompt's end and of the answer in pieces."""
    prompt, answer = group.ids[: -group.answer_tokens], group.ids[-group.answer_tokens :]
    found = [decoder.prefill(embed(decoder.model, prompt, group.features, group.grids), keep=2)]
    at = 0
    for piece in pieces:
        found.append(decoder.add(answer[at : at + piece]).clone())
        at += piece
    return torch.cat(found)


@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=runs_kernels)])
@pytest.mark.parametrize("pieces", [(1, 1, 1, 1), (4, 1, 6), (9,)])
def test_logits_are_those_of_a_cache_that_grows(
    base: BaseModel, groups: list[GroupInput], pieces: tuple[int, ...], kernels: bool
) -> None:
    """One decoder for all groups: nothing of an earlier one is left."""
    model = base.model.to(DEVICE) if kernels else base.model
    fixed = FixedDecoder(model, kernels=kernels, captured=False)
    for group in groups:
        torch.testing.assert_close(
            logits(fixed, group, pieces), logits(Decoder(model), group, pieces), rtol=1e-4, atol=1e-4
        )


def test_memory_is_kept_between_groups_and_grows_for_a_longer_one(
    base: BaseModel, groups: list[GroupInput], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stateplay_rl.reward_model import fixed_decoder

    monkeypatch.setattr(fixed_decoder, "ROOM_STEP", 1)
    decoder = FixedDecoder(base.model, kernels=False, captured=False)
    sizes, places = [], []
    for group in groups:
        logits(decoder, group, (1, 2))
        sizes.append(decoder._rooms[0].max_cache_len)
        places.append(decoder._rooms[0].keys.data_ptr())
    lengths = [len(group.ids) - group.answer_tokens + fixed_decoder.ANSWER_ROOM for group in groups]
    assert lengths[0] < lengths[1]
    assert sizes == [lengths[0], lengths[1], lengths[1]]
    assert places[1] == places[2]
    decoder.release()
    torch.testing.assert_close(
        logits(decoder, groups[0], (3,)), logits(Decoder(base.model), groups[0], (3,)), rtol=1e-4, atol=1e-4
    )


def test_both_decoders_read_the_same_scores(base: BaseModel) -> None:
    reader = GroupReader(base)
    prompt = reader.prompt(payload_of(3))
    decoders = (FixedDecoder(base.model, kernels=False, captured=False), Decoder(base.model))
    for reading in get_args(Reading):
        ours, plain = (read_scores(d, base.chat, reader.form(LABELS), prompt, reading) for d in decoders)
        assert (ours.text, ours.reason) == (plain.text, plain.reason)
        assert ours.legal_mass == pytest.approx(plain.legal_mass or 0.0, rel=1e-3) or reading == "greedy"


def test_attention_is_the_models_own_again_after_a_pass(base: BaseModel, groups: list[GroupInput]) -> None:
    config = base.model.config.text_config
    before = config._attn_implementation
    logits(FixedDecoder(base.model, kernels=False, captured=False), groups[0], (1,))
    assert config._attn_implementation == before


def test_weights_that_were_written_or_moved_are_noticed() -> None:
    model = torch.nn.Linear(3, 2)
    watch = WeightsWatch(torch.nn.Linear(1, 1), model)
    changes = [watch.changed(), watch.changed()]
    states = [weights_state(model)]
    with torch.no_grad():
        model.weight.add_(1.0)
    changes += [watch.changed(), watch.changed()]
    states.append(weights_state(model))
    kept = model.bias.data
    model.bias.data = kept.clone()
    states.append(weights_state(model))
    assert len(set(states)) == 3
    assert weights_state(model) == states[2]
    assert [*changes, watch.changed(), watch.changed()] == [True, False] * 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_piece_of_work_follows_its_inputs_and_its_state() -> None:
    total = torch.zeros(2, device="cuda")

    def work(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return total * 2

    captured = Captured(work, torch.ones(2, device="cuda"))
    total.zero_()
    assert captured(torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]
    assert captured(torch.tensor([1.0, 1.0])).tolist() == [4.0, 6.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_passes_are_the_launched_ones_bit_for_bit(base: BaseModel, groups: list[GroupInput]) -> None:
    """Also after the weights were written, and stepping back."""
    model = base.model.cuda()
    captured, launched = (FixedDecoder(model, kernels=False, captured=flag) for flag in (True, False))
    for group in groups:
        assert torch.equal(logits(captured, group, (1, 4, 1, 4)), logits(launched, group, (1, 4, 1, 4)))
        with torch.no_grad():
            model.model.language_model.norm.weight.add_(0.1)
    state = captured.state()
    first = captured.add(group.ids[:2]).clone()
    captured.back_to(state)
    assert torch.equal(captured.add(group.ids[:2]), first)
