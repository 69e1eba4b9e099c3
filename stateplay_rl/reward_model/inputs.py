"""From a payload to what the model reads: tokens counted first, pictures only when they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.errors import InputError
from stateplay_rl.reward_model.answers import AnswerForm
from stateplay_rl.reward_model.base_model import BaseModel
from stateplay_rl.reward_model.learning import GroupInput
from stateplay_rl.reward_model.payload import GroupPayload
from stateplay_rl.reward_model.reading import Prompt
from stateplay_rl.reward_model.vision import VisionFeatures

HIGHEST_SCORE = 100


@dataclass(frozen=True)
class Length:
    """Expanded length of a group, in tokens."""

    prompt: int
    answer: int

    @property
    def total(self) -> int:
        """Prompt and the longest possible answer."""
        return self.prompt + self.answer


class GroupReader:
    """Makes the inputs of one base model.

    Args:
        base: the loaded base.
        feature_cache: folder of cached vision features, or None.
        captured: calls of the vision tower are CUDA graphs.
    """

    def __init__(self, base: BaseModel, feature_cache: Path | None = None, *, captured: bool = False) -> None:
        self._base = base
        self._features = VisionFeatures(
            base.model, base.pictures, base.sha256, feature_cache, fused=base.fused, captured=captured
        )
        self._forms: dict[tuple[str, ...], AnswerForm] = {}

    def form(self, labels: tuple[str, ...]) -> AnswerForm:
        """Answer tokens for these labels."""
        if labels not in self._forms:
            self._forms[labels] = AnswerForm.of(self._base.chat, labels)
        return self._forms[labels]

    def length(self, payload: GroupPayload) -> Length:
        """Length of a payload with its longest answer, from picture headers alone."""
        counts = [self._base.pictures.tokens(image.jpeg) for image in payload.images]
        prompt = len(self._base.chat.prompt(payload.parts, counts).ids)
        return Length(prompt, len(self.form(payload.labels).tokens([HIGHEST_SCORE] * len(payload.labels))))

    def prompt(self, payload: GroupPayload) -> Prompt:
        """A payload ready to be scored."""
        grids = [self._base.pictures.grid(image.jpeg) for image in payload.images]
        tokens = self._base.chat.prompt(payload.parts, [grid.tokens(self._base.pictures.merge) for grid in grids])
        return Prompt(tokens.ids, self._features(payload.images), grids)

    def training_input(self, payload: GroupPayload, target: tuple[int, ...]) -> GroupInput:
        """A payload with the answer to learn.

        Args:
            target: whole points by stored candidate.
        """
        prompt = self.prompt(payload)
        answer = self.form(payload.labels).tokens([target[candidate] for candidate in payload.order])
        return GroupInput((*prompt.ids, *answer), len(answer), prompt.features, prompt.grids)


def refuse_too_long(lengths: dict[str, Length], max_length: int) -> None:
    """Raise when any group does not fit; nothing is cut or thinned out.

    Args:
        lengths: by group id.

    Raises:
        InputError: names the groups and their lengths.
    """
    long = {name: length for name, length in lengths.items() if length.total > max_length}
    if long:
        worst, length = max(long.items(), key=lambda item: item[1].total)
        raise InputError(
            f"{len(long)} of {len(lengths)} groups are longer than max_length {max_length}: {worst} has {length.total} "
            f"tokens ({length.prompt} of the prompt, {length.answer} of the longest answer)",
            f"use --set max_length={length.total} if memory allows, or judge fewer or smaller frames",
        )
