"""A decoder whose cache has a fixed size: passes over the answer's few tokens become CUDA graphs, kept between groups.

`Decoder` of `language` reads any sequence with a cache that grows. Here keys and values lie in memory with room to
spare, DeltaNet's states are written in place, and the filled length is on the device: a pass has the same addresses
and shapes for every group. Shapes: L tokens of the prompt, S of a pass, M places, Y vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from stateplay_rl.reward_model import few_queries
from stateplay_rl.reward_model.captured import Captured, WeightsWatch
from stateplay_rl.reward_model.language import NO_MASKS, AnswerDecoder, CachedModel, Decoder, Sequence1

ANSWER_ROOM = 1024
"""Places behind the prompt; an answer is cut long before."""
ROOM_STEP = 4096
"""Memory grows in such steps: prompts of about one length share it, and the graphs with it."""


class FixedDecoder(CachedModel):
    """`Decoder` for one group after the other.

    Args:
        model: with or without an adapter, in evaluation mode.
        kernels: attention by Triton; otherwise plain PyTorch.
        captured: passes are CUDA graphs, made anew when the weights were moved or written; otherwise each kernel of
            the same passes is launched.
    """

    def __init__(self, model: Any, *, kernels: bool, captured: bool) -> None:
        few_queries.install()
        super().__init__(model)
        self._kernels, self._captured = kernels, captured
        self._watch = WeightsWatch(self._language, self._plain.lm_head)
        self.release()

    def release(self) -> None:
        """Forget what was read, and give memory and graphs back."""
        self._rooms: list[Any] = []
        self._cache: Any = None
        self._graphs: dict[int, Captured] = {}

    @torch.no_grad()
    def prefill(self, inputs: Sequence1, keep: int) -> Tensor:
        """Read a whole prompt, whatever was read before; float32 logits [keep, Y] of its last `keep` positions."""
        self._make_room(inputs.embeddings.shape[1] + ANSWER_ROOM)
        self._read_prompt(True)
        found = self._new_cache()
        hidden_SW = self._hidden(inputs.embeddings, inputs.positions, found, attention_mask=NO_MASKS)
        if self._cache is None:
            self._cache = found
        else:
            # Into the memory that the graphs know.
            torch._foreach_copy_(self._states(), _states(found))
        self._read_prompt(False)
        self._next_position = inputs.next_position
        return self._logits(hidden_SW[-keep:])

    @torch.no_grad()
    def add(self, ids: Sequence[int]) -> Tensor:
        """Append tokens, at most `ANSWER_ROOM` in all.

        Returns:
            Float32 logits [len(ids), Y] behind each of them; the next call may overwrite them.
        """
        order = torch.tensor([self._next_position, *ids])
        self._next_position += len(ids)
        if not self._captured:
            return self._pass(order.to(self._device))
        if len(ids) not in self._graphs:
            before = self._kept()
            self._graphs[len(ids)] = Captured(self._pass, order.to(self._device))
            torch._foreach_copy_(self._states(), before)
        return self._graphs[len(ids)](order)

    def state(self) -> tuple[list[Tensor], int]:
        """The present state, to go back to. Keys and values stay where they are: what lies behind is not read."""
        return self._kept(), self._next_position

    def back_to(self, state: tuple[list[Tensor], int]) -> None:
        """Return to a kept state, which stays usable."""
        kept, self._next_position = state
        torch._foreach_copy_(self._states(), kept)

    def _pass(self, order: Tensor) -> Tensor:
        """Logits of a few tokens; the states move on.

        Args:
            order: position of the first token, tokens; integers [1 + S].
        """
        ids_S = order[1:]
        filled = self._rooms[0].cumulative_length + len(ids_S)
        options = {"attention_mask": NO_MASKS, "filled": filled, "kernels": self._kernels}
        with self._few_queries():
            hidden_SW = self._tokens_hidden(ids_S, order[0], self._cache, **options)
        return self._logits(hidden_SW)

    @contextmanager
    def _few_queries(self) -> Iterator[None]:
        config = self._language.config
        before, config._attn_implementation = config._attn_implementation, few_queries.NAME
        try:
            yield
        finally:
            config._attn_implementation = before

    def _make_room(self, places: int) -> None:
        """Memory for so many places; graphs that would read other memory or weights are dropped."""
        changed = self._captured and self._watch.changed()
        enough = bool(self._rooms) and self._rooms[0].max_cache_len >= places
        if changed or not enough:
            self._graphs.clear()
        if enough:
            for room in self._rooms:
                room.cumulative_length.zero_()
        else:
            self._cache = None
            self._rooms = []
            size = -(-places // ROOM_STEP) * ROOM_STEP
            self._rooms = [_room_class()(size) for kind in self._kinds() if kind == "full_attention"]

    def _read_prompt(self, now: bool) -> None:
        for room in self._rooms:
            room.reads_prompt = now

    def _kinds(self) -> list[str]:
        return list(self._language.config.layer_types)

    def _new_cache(self) -> Any:
        from transformers.cache_utils import Cache, LinearAttentionLayer

        rooms = iter(self._rooms)
        return Cache(
            layers=[next(rooms) if kind == "full_attention" else LinearAttentionLayer() for kind in self._kinds()]
        )

    def _states(self) -> list[Tensor]:
        return _states(self._cache)

    def _kept(self) -> list[Tensor]:
        return [state.clone() for state in self._states()]


def decoder_of(model: Any, *, fused: bool, captured: bool) -> AnswerDecoder:
    """The decoder of a student.

    Args:
        fused: whether it computes with our kernels; they want a GPU.
        captured: as of `FixedDecoder`.
    """
    return FixedDecoder(model, kernels=True, captured=captured) if fused else Decoder(model)


def _states(cache: Any) -> list[Tensor]:
    """What a pass moves on, beside keys and values: DeltaNet's states, and how far the rooms are filled."""
    found: list[Tensor] = []
    for layer in cache.layers:
        if hasattr(layer, "cumulative_length"):
            found.append(layer.cumulative_length)
        else:
            found += [*layer.conv_states.values(), *layer.recurrent_states.values()]
    return found


@cache
def _room_class() -> Any:
    from transformers.cache_utils import StaticLayer

    class Room(StaticLayer):  # type: ignore[misc]
        """transformers' layer of fixed size; a prompt attends to its own keys and values, not to the whole memory."""

        reads_prompt = False

        def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            whole: tuple[Tensor, Tensor] = super().update(key_states, value_states)
            return (key_states, value_states) if self.reads_prompt else whole

    return Room
