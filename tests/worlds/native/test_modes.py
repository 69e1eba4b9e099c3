"""Trained parameters by mode: nothing more, nothing less."""

from __future__ import annotations

import pytest

from stateplay_rl.errors import CheckError, UsageError
from stateplay_rl.worlds.native import coupling_lora
from stateplay_rl.worlds.native.modes import trained_groups, trained_names


def test_transition_is_module_b(model):
    groups = trained_names(model, "transition")
    own = [f"latent_state_rollout.transition.{n}" for n, _ in model.latent_state_rollout.transition.named_parameters()]
    assert groups == {"transition": tuple(own)}


def test_coupling_and_joint_need_the_adapter(model):
    with pytest.raises(CheckError):
        trained_names(model, "coupling")
    names = coupling_lora.inject(model, seed=0)
    assert trained_names(model, "coupling") == {"coupling_lora": names}
    assert list(trained_names(model, "joint")) == ["transition", "coupling_lora"]
    with pytest.raises(CheckError, match="carries coupling LoRA"):
        trained_names(model, "full")


def test_full_covers_every_parameter_once(model):
    groups = trained_groups(model, "full")
    assert [group.name for group in groups] == ["backbone", "coupling", "transition", "state", "predictor"]
    assert all(group.names for group in groups)
    names = [name for group in groups for name in group.names]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert sum(group.count for group in groups) == sum(p.numel() for p in model.parameters())


def test_models_and_modes_that_do_not_fit_are_refused(model, model_factory):
    with pytest.raises(CheckError, match="no latent-state modules"):
        trained_names(model_factory(latent_state=False), "transition")
    with pytest.raises(UsageError, match="unknown parameter mode"):
        trained_names(model, "everything")
