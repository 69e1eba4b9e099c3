"""Prompts to context through the checkout's tokenizer and text encoder.

Shapes: B batch, L text tokens, D text width.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stateplay_rl.worlds.preparation import clean_prompt

CACHE_BYTES = 256 << 20


class CheckoutText:
    """Prompt -> context [L, D] float32, positions past the prompt zeroed; cached by prompt, one at a time.

    Called as in the training repository: `ids, mask = tokenizer(prompt, return_mask=True,
    add_special_tokens=True)`, then `text_encoder(ids, mask)`.
    """

    def __init__(self, encoder: nn.Module, tokenizer: Callable[..., Any]) -> None:
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._contexts: OrderedDict[str, tuple[Tensor, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Contexts [B, L, D] float32 on the CPU."""
        with self._lock:
            contexts = [self._context(prompt) for prompt in prompts]
        return torch.stack([F.pad(context, (0, 0, 0, tokens - len(context))) for context, tokens in contexts])

    @torch.no_grad()
    def _context(self, prompt: str) -> tuple[Tensor, int]:
        """The part of a context that is not zero [L', D], and L."""
        if prompt in self._contexts:
            self._contexts.move_to_end(prompt)
            return self._contexts[prompt]
        device = next(self._encoder.parameters()).device
        ids_1L, mask_1L = self._tokenizer(clean_prompt(prompt), return_mask=True, add_special_tokens=True)
        hidden_1LD = self._encoder(ids_1L.to(device), mask_1L.to(device))
        used = int((mask_1L > 0).sum())
        entry = (hidden_1LD[0, :used].float().cpu().clone(), int(ids_1L.shape[1]))
        self._contexts[prompt] = entry
        self._bytes += entry[0].nbytes
        while self._bytes > CACHE_BYTES and len(self._contexts) > 1:
            self._bytes -= self._contexts.popitem(last=False)[1][0].nbytes
        return entry
