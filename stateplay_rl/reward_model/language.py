"""The language model's pass over one group: embeddings, positions, hidden states, logits where they are needed.

The parts of the class are called one by one, so that cached picture features can be used and the vocabulary-wide
logits exist at the asked positions only. Shapes: L tokens, W width, S asked positions, Y vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from stateplay_rl.reward_model.pictures import Grid

# The masks that a causal pass without padding has: none. Given as a dict, no L x L mask is ever thought of.
NO_MASKS = {"full_attention": None, "linear_attention": None}


def plain_model(model: Any) -> Any:
    """The conditional-generation model itself, whether or not PEFT has wrapped it."""
    from peft import PeftModel

    return model.get_base_model() if isinstance(model, PeftModel) else model


@dataclass(frozen=True)
class Sequence1:
    """One group's input: embeddings [1, L, W], positions [3, 1, L], and the position after the last one."""

    embeddings: Tensor
    positions: Tensor
    next_position: int


def embed(model: Any, ids: Sequence[int], features: Sequence[Tensor], grids: Sequence[Grid]) -> Sequence1:
    """Put picture features in the places of the image tokens and number the positions as the class does.

    Args:
        ids: tokens, an image token for every visual token.
        features: [T, W] of every picture.
        grids: patches of every picture.

    Raises:
        ValueError: features and image tokens do not match.
    """
    plain = plain_model(model)
    ids_1L = torch.tensor([list(ids)])
    image_1L = ids_1L == plain.config.image_token_id
    grid_thw = torch.tensor([[1, grid.rows, grid.columns] for grid in grids]).reshape(-1, 3)
    positions, delta = plain.model.get_rope_index(ids_1L, image_1L.int(), image_grid_thw=grid_thw)
    device = plain.lm_head.weight.device
    embeddings = plain.model.get_input_embeddings()(ids_1L.to(device))
    if features:
        joined = torch.cat(list(features)).to(device, embeddings.dtype)
        if len(joined) != int(image_1L.sum()):
            raise ValueError(f"{len(joined)} visual features for {int(image_1L.sum())} image tokens")
        embeddings = embeddings.masked_scatter(image_1L.to(device)[..., None], joined)
    return Sequence1(embeddings, positions.to(device), len(ids) + int(delta))


def hidden_states(model: Any, inputs: Sequence1) -> Tensor:
    """Last hidden states [L, W] of a whole sequence, no cache kept."""
    language = plain_model(model).model.language_model
    found: Tensor = language(
        inputs_embeds=inputs.embeddings, position_ids=inputs.positions, attention_mask=NO_MASKS, use_cache=False
    ).last_hidden_state[0]
    return found


def answer_logits(model: Any, inputs: Sequence1, answer_tokens: int) -> Tensor:
    """Float32 logits [answer_tokens, Y] that predict the last `answer_tokens` tokens of the sequence."""
    hidden_LW = hidden_states(model, inputs)
    # The state before a token predicts it; the rest of the sequence never meets the vocabulary.
    asked_SW = hidden_LW[-answer_tokens - 1 : -1]
    logits: Tensor = plain_model(model).lm_head(asked_SW).float()
    return logits


class AnswerDecoder(Protocol):
    """Reads a prompt, then tokens behind it; can step back to a kept state."""

    model: Any

    def prefill(self, inputs: Sequence1, keep: int) -> Tensor: ...

    def add(self, ids: Sequence[int]) -> Tensor: ...

    def state(self) -> Any: ...

    def back_to(self, state: Any) -> None: ...

    def release(self) -> None: ...


class CachedModel:
    """A language model that reads with a cache: what the decoders have in common.

    Args:
        model: with or without an adapter, in evaluation mode.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._plain = plain_model(model)
        self._language = self._plain.model.language_model
        # Renamed within transformers 5: `past_key_values` before, `cache` since.
        names = inspect.signature(inspect.unwrap(type(self._language).forward)).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._next_position = 0

    @property
    def _device(self) -> torch.device:
        return torch.device(self._plain.lm_head.weight.device)

    def _hidden(self, embeddings_1SW: Tensor, positions_31S: Tensor, cache: Any, **options: Any) -> Tensor:
        """Last hidden states [S, W] of tokens behind those in the cache, which takes them up."""
        found: Tensor = self._language(
            inputs_embeds=embeddings_1SW,
            position_ids=positions_31S,
            use_cache=True,
            **{self._cache_name: cache},
            **options,
        ).last_hidden_state[0]
        return found

    def _tokens_hidden(self, ids_S: Tensor, first_position: Tensor | int, cache: Any, **options: Any) -> Tensor:
        """`_hidden` of text tokens: one position each."""
        positions_S = first_position + torch.arange(len(ids_S), device=ids_S.device)
        embeddings_1SW = self._plain.model.get_input_embeddings()(ids_S[None])
        return self._hidden(embeddings_1SW, positions_S.expand(3, 1, -1), cache, **options)

    def _logits(self, hidden_SW: Tensor) -> Tensor:
        logits: Tensor = self._plain.lm_head(hidden_SW).float()
        return logits


class Decoder(CachedModel):
    """A growing sequence with its cache."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._cache: Any = None

    @torch.no_grad()
    def prefill(self, inputs: Sequence1, keep: int) -> Tensor:
        """Read a whole prompt, whatever was read before; float32 logits [keep, Y] of its last `keep` positions."""
        from transformers import DynamicCache

        self._cache = DynamicCache(config=self._plain.config.text_config)
        hidden_SW = self._hidden(inputs.embeddings, inputs.positions, self._cache, attention_mask=NO_MASKS)
        self._next_position = inputs.next_position
        return self._logits(hidden_SW[-keep:])

    @torch.no_grad()
    def add(self, ids: Sequence[int]) -> Tensor:
        """Append tokens; float32 logits [len(ids), Y] behind each of them."""
        ids_S = torch.tensor(list(ids), device=self._device)
        with _few_queries(self._device):
            hidden_SW = self._tokens_hidden(ids_S, self._next_position, self._cache)
        self._next_position += len(ids)
        return self._logits(hidden_SW)

    def release(self) -> None:
        """Forget what was read, and give its memory back."""
        self._cache = None

    def state(self) -> tuple[Any, int]:
        """The present state, to go back to."""
        return _copied(self._cache), self._next_position

    def back_to(self, state: tuple[Any, int]) -> None:
        """Return to a kept state, which stays usable."""
        cache, self._next_position = state
        self._cache = _copied(cache)


def _few_queries(device: torch.device) -> AbstractContextManager[Any]:
    """Attention of a few tokens to all before them; not cuDNN's, which plans anew for every length."""
    if device.type != "cuda":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    # The plain one is harmless here: its matrix has a few rows.
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    found: AbstractContextManager[Any] = sdpa_kernel(kernels)
    return found


def _copied(cache: Any) -> Any:
    """A copy that later tokens do not touch.

    Keys and values are joined into new tensors when a token is added, so their old tensors may be shared: at real
    size they are gigabytes. DeltaNet states are small and may be written in place: they are cloned.
    """
    found = copy.copy(cache)
    found.layers = [_copied_layer(layer) for layer in cache.layers]
    return found


def _copied_layer(layer: Any) -> Any:
    result = copy.copy(layer)
    for name, value in vars(layer).items():
        if name not in ("keys", "values"):
            setattr(result, name, _cloned(value))
    return result


def _cloned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list):
        return [_cloned(item) for item in value]
    if isinstance(value, dict):
        return {key: _cloned(item) for key, item in value.items()}
    return value
