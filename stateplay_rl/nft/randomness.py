"""Counter-based randomness: every draw has its own generator, keyed by what it is for.

A sample's randomness depends on (run seed, purpose, batch, pass, condition, candidate) and on nothing else:
not on rank, world size, batch composition, or what ran before. No global generator is touched.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NONE = -1
"""Value of a key field that does not apply."""


@dataclass(frozen=True)
class DrawKey:
    """What a draw is for.

    Args:
        run_seed: seed of the run.
        purpose: a fixed word per use (`initial_noise`, `sigma`, `eps`, `shuffle`, ...).
        batch, inner_pass, candidate: counters; `NONE` where they do not apply.
        condition: condition id; empty where it does not apply.
    """

    run_seed: int
    purpose: str
    batch: int = NONE
    inner_pass: int = NONE
    condition: str = ""
    candidate: int = NONE

    def seed(self) -> int:
        """First 63 bits of SHA-256 over the key's canonical JSON: stable over processes and machines.

        torch's CPU generator reads the low 32 bits only, so among N draws about N^2 / 2^33 pairs coincide by
        chance; two draws of one sample coincide with probability 2^-32.
        """
        fields = [self.run_seed, self.purpose, self.batch, self.inner_pass, self.condition, self.candidate]
        digest = hashlib.sha256(json.dumps(fields, ensure_ascii=True).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


def generator(key: DrawKey | int) -> torch.Generator:
    """A fresh CPU generator for a key or for a recorded seed."""
    return torch.Generator(device="cpu").manual_seed(key if isinstance(key, int) else key.seed())


def normal(key: DrawKey | int, shape: Sequence[int]) -> Tensor:
    """Standard normal float32 [shape] on the CPU, equal on every machine that uses the same torch."""
    return torch.randn(tuple(shape), generator=generator(key), dtype=torch.float32)


def index(key: DrawKey | int, count: int) -> int:
    """Uniform integer in 0..count-1.

    Raises:
        ValueError: count below 1.
    """
    if count < 1:
        raise ValueError(f"cannot draw one of {count}")
    return int(torch.randint(count, (1,), generator=generator(key)).item())


def choice(key: DrawKey | int, values: Tensor) -> Tensor:
    """One element of a 1-D tensor (the sigma of a visit), as a 0-dim tensor of its dtype."""
    return values[index(key, int(values.shape[0]))]


def permutation(key: DrawKey | int, count: int) -> list[int]:
    """A uniform order of 0..count-1."""
    return [int(i) for i in torch.randperm(count, generator=generator(key))]
