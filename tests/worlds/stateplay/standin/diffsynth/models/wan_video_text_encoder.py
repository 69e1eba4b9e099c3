"""A toy text encoder and a byte tokenizer with the public classes' calling conventions."""

from pathlib import Path

import torch
from torch import nn


class WanTextEncoder(nn.Module):
    def __init__(self, vocab=256, dim=32):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids, mask=None):
        return self.norm(self.token_embedding(ids).cumsum(1))


class HuggingfaceTokenizer:
    def __init__(self, name, seq_len=None, clean=None, **kwargs):
        if clean != "whitespace" or not Path(name, "tokenizer.json").read_text():
            raise ValueError("the tokenizer's folder is empty")
        self.seq_len = seq_len

    def __call__(self, sequence, **kwargs):
        if not kwargs.pop("return_mask", False):
            raise ValueError("ask for the mask")
        data = list(" ".join(sequence.split()).encode())[: self.seq_len - 1] + [1]
        ids = torch.zeros(1, self.seq_len, dtype=torch.long)
        ids[0, : len(data)] = torch.tensor(data)
        mask = (torch.arange(self.seq_len) < len(data)).long()[None]
        return ids, mask
