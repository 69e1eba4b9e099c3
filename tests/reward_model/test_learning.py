"""The loss of a group and what saves memory without changing it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from stateplay_rl.reward_model import lora
from stateplay_rl.reward_model.base_model import BaseModel
from stateplay_rl.reward_model.inputs import GroupReader
from stateplay_rl.reward_model.language import embed, hidden_states
from stateplay_rl.reward_model.learning import (
    GroupInput,
    group_loss,
    half_precision,
    prepare_for_scoring,
    prepare_for_training,
    save_memory,
)
from tests.reward_model.small_groups import payload_of


def adapted(base: BaseModel, dropout: float = 0.0) -> object:
    targets = lora.find_targets(base.model, base.layer_types)
    model = lora.attach(base.model, targets, rank=4, alpha=8, dropout=dropout, seed=1)
    with torch.no_grad():
        for name, parameter in lora.trained_parameters(model).items():
            if ".lora_B." in name:
                parameter.normal_(std=0.02, generator=torch.Generator().manual_seed(len(name)))
    return model


def gradients(model: object, group: GroupInput) -> tuple[float, list[torch.Tensor]]:
    loss = group_loss(model, group)
    found = torch.autograd.grad(loss, list(lora.trained_parameters(model).values()))
    return float(loss.detach()), list(found)


def test_the_loss_is_that_of_the_answer_alone(base: BaseModel) -> None:
    """Cross-entropy over the answer and the end of the turn, nothing of the prompt."""
    group = GroupReader(base).training_input(payload_of(1), (0, 7, 100, 35))
    with torch.no_grad():
        hidden = hidden_states(base.model, embed(base.model, group.ids, group.features, group.grids))
        logits = base.model.lm_head(hidden).float()
        loss = group_loss(base.model, group)
    places = range(len(group.ids) - group.answer_tokens, len(group.ids))
    by_hand = [-F.log_softmax(logits[place - 1], -1)[group.ids[place]] for place in places]
    assert float(loss) == pytest.approx(float(torch.stack(by_hand).mean()), rel=1e-5)
    assert group.ids[-1] == base.chat.end_id


@pytest.mark.parametrize("checkpointing", [False, True])
def test_pieces_and_recomputation_change_no_gradient(base: BaseModel, checkpointing: bool) -> None:
    group = GroupReader(base).training_input(payload_of(1), (0, 7, 100, 35))
    model = adapted(base)
    loss, expected = gradients(model, group)
    save_memory(model, piece_tokens=7)
    prepare_for_training(model, checkpointing=checkpointing)
    again, found = gradients(model, group)
    assert again == pytest.approx(loss, rel=1e-6)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_dropout_is_on_in_training_only(base: BaseModel) -> None:
    group = GroupReader(base).training_input(payload_of(1), (0, 7, 100, 35))
    model = adapted(base, dropout=0.5)
    prepare_for_scoring(model)
    with torch.no_grad():
        quiet = {float(group_loss(model, group)) for _ in range(3)}
        prepare_for_training(model, checkpointing=False)
        noisy = {float(group_loss(model, group)) for _ in range(3)}
    assert len(quiet) == 1
    assert len(noisy) == 3


def test_a_bfloat16_base_learns_with_a_float32_adapter(base: BaseModel) -> None:
    model = adapted(base)
    exact, _ = gradients(model, GroupReader(base).training_input(payload_of(1), (0, 7, 100, 35)))
    for name, parameter in base.model.named_parameters():
        if ".lora_" not in name:
            parameter.data = parameter.data.bfloat16()
    save_memory(model)
    prepare_for_training(model, checkpointing=True)
    group = GroupReader(base).training_input(payload_of(1), (0, 7, 100, 35))
    with half_precision(torch.device("cpu"), "bfloat16"):
        loss, found = gradients(model, group)
    assert loss == pytest.approx(exact, rel=0.05)
    assert all(g.dtype == torch.float32 and bool(torch.isfinite(g).all()) for g in found)
