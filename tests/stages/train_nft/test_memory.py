"""A full GPU is named, with what lowers it."""

from __future__ import annotations

import pytest
import torch

from stateplay_rl.errors import EXIT_OUTSIDE, OutsideError
from stateplay_rl.stages.train_nft.memory import REMEDIES, Part, name_memory


@pytest.mark.parametrize("part", list(REMEDIES))
def test_the_part_and_the_settings_are_named(part: Part) -> None:
    with pytest.raises(OutsideError, match=rf"out of memory in part '{part}'.*tried to allocate 2 GiB") as caught:
        fail(part)
    assert caught.value.exit_code == EXIT_OUTSIDE
    assert "--resume" in caught.value.hint
    assert REMEDIES[part] in caught.value.hint


def fail(part: Part) -> None:
    with name_memory(part):
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="a bug"), name_memory("train"):
        raise RuntimeError("a bug")
