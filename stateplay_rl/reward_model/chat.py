"""From a payload to token ids: the checkpoint's own chat template, thinking off, pictures as placeholders.

Texts are encoded apart from the template's marks, so that a condition's text that spells a special token is quoted
data and never becomes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.errors import InputError
from stateplay_rl.reward_model.payload import ImagePart, TextPart

IMAGE = "<|image_pad|>"
IMAGE_BLOCK = f"<|vision_start|>{IMAGE}<|vision_end|>"
END_OF_TURN = "<|im_end|>"
_SENTINEL = "sprl-user-text"


@dataclass(frozen=True)
class ChatTokens:
    """A prompt's ids with one image token per visual token.

    Args:
        ids: all tokens up to and with the start of the assistant's answer.
        image_tokens: number of visual tokens of each picture, in order.
    """

    ids: tuple[int, ...]
    image_tokens: tuple[int, ...]


class ChatFormat:
    """Chat format of one checkpoint.

    Args:
        tokenizer: a fast tokenizer with Qwen's special tokens and a chat template.
        image_token_id: the model's own id of the image placeholder.

    Raises:
        InputError: tokenizer and model disagree, or the template cannot switch thinking off.
    """

    def __init__(self, tokenizer: Any, image_token_id: int) -> None:
        self.tokenizer = tokenizer
        self.image_id = int(tokenizer.convert_tokens_to_ids(IMAGE))
        if self.image_id != image_token_id:
            raise InputError(
                f"the tokenizer's {IMAGE} is {self.image_id}, the model's image_token_id {image_token_id}",
                "give a folder that holds model and tokenizer of one checkpoint",
            )
        self.end_id = int(tokenizer.convert_tokens_to_ids(END_OF_TURN))
        head, tail = self._template()
        self.head_ids, self.tail_ids = self._marks(head), self._marks(tail)
        self._image_ids = self._marks(IMAGE_BLOCK)

    @classmethod
    def load(cls, folder: Path, image_token_id: int) -> ChatFormat:
        """The tokenizer of a model folder.

        Raises:
            InputError: no tokenizer, or one without a chat template.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), use_fast=True, local_files_only=True)
        except (OSError, ValueError) as error:
            raise InputError(f"{folder} has no usable tokenizer: {error!s:.200}", "complete the folder") from error
        if not tokenizer.chat_template:
            raise InputError(f"{folder}: the tokenizer has no chat template", "add chat_template.jinja")
        return cls(tokenizer, image_token_id)

    def prompt(self, parts: Sequence[TextPart | ImagePart], image_tokens: Sequence[int]) -> ChatTokens:
        """Tokens of a payload, up to the place where the answer starts.

        Args:
            parts: the payload.
            image_tokens: visual tokens of each picture.
        """
        ids = list(self.head_ids)
        counts = iter(image_tokens)
        texts: list[str] = []
        used: list[int] = []
        for part in parts:
            if isinstance(part, TextPart):
                texts.append(part.text)
                continue
            ids += self.text(_flush(texts))
            used.append(next(counts))
            for token in self._image_ids:
                ids += [token] * used[-1] if token == self.image_id else [token]
        ids += self.text(_flush(texts))
        return ChatTokens((*ids, *self.tail_ids), tuple(used))

    def served_template(self) -> str:
        """The checkpoint's template with thinking switched off for good: for servers that are given no such option."""
        return f"{{%- set enable_thinking = false %}}{self.tokenizer.chat_template}"

    def text(self, text: str) -> list[int]:
        """Ids of plain text; special tokens in it are split into ordinary ones."""
        if not text:
            return []
        found: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Text of an answer, special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _marks(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _template(self) -> tuple[str, str]:
        """What the checkpoint's template puts before and after the user's content."""
        content = [{"type": "text", "text": _SENTINEL}, {"type": "image"}, {"type": "text", "text": _SENTINEL}]
        rendered = str(
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": content}],
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,
            )
        )
        head, found, tail = rendered.partition(f"{_SENTINEL}{IMAGE_BLOCK}{_SENTINEL}")
        if not found:
            raise InputError(f"the chat template renders pictures in an unknown way: {rendered!r:.200}", "")
        if "<think>" in tail and "</think>" not in tail:
            raise InputError("the chat template cannot switch thinking off", "use the checkpoint's own template")
        return head, tail


def _flush(texts: list[str]) -> str:
    joined = "".join(texts)
    texts.clear()
    return joined
