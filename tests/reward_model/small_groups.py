"""Requests of thirty tokens: a word and one small picture a candidate, so that learning takes seconds."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from stateplay_rl.reward_model.base_model import BaseModel, load_base
from stateplay_rl.reward_model.payload import GroupPayload, ImagePart, TextPart
from stateplay_rl.reward_model.small_model import SmallSizes, build_config, build_model, train_tokenizer, write_folder
from stateplay_rl.stages.train_rm.examples import Example

LABELS = ("A", "B", "C", "D")
TEXTS = ["Judge A: B: C: D:", '{"scores": {"A": 1, "B": 2, "C": 3, "D": 4}}'] * 4


def picture(seed: int, level: int = 128, size: int = 32) -> ImagePart:
    """A picture of coarse random blocks around a grey level."""
    blocks = np.random.default_rng(seed).integers(-60, 60, (4, 4, 3)) + level
    pixels = np.clip(blocks, 0, 255).astype(np.uint8).repeat(size // 4, 0).repeat(size // 4, 1)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return ImagePart.of(buffer.getvalue())


def write_small_model(folder: Path, seed: int = 0) -> Path:
    """A model folder of the real classes, 0.1 M weights."""
    folder.mkdir(parents=True)
    tokenizer = train_tokenizer(TEXTS, 300)
    sizes = SmallSizes(smallest_pixels=256)
    model = build_model(build_config(sizes, tokenizer), seed)
    # Random weights of the usual size say the same of every picture and are sure of no token, and both are frozen.
    model.lm_head.weight.data.mul_(25.0)
    model.model.visual.patch_embed.proj.weight.data.mul_(10.0)
    model.model.visual.merger.linear_fc1.weight.data.mul_(10.0)
    model.model.visual.merger.linear_fc2.weight.data.mul_(10.0)
    write_folder(folder, model, tokenizer, sizes)
    return folder


def load_small_model(folder: Path) -> BaseModel:
    return load_base(folder, device=torch.device("cpu"), precision="float32", rule="auto")


def payload_of(number: int, order: Sequence[int] = (0, 1, 2, 3)) -> GroupPayload:
    """Group `number`: candidate k always has the same picture, wherever it is shown."""
    parts: list[TextPart | ImagePart] = [TextPart("Judge")]
    for label, candidate in zip(LABELS, order, strict=True):
        parts += [TextPart(f" {label}:"), picture(10 * number + candidate)]
    return GroupPayload(tuple(parts), LABELS, tuple(order))


def scores_of(number: int) -> tuple[float, ...]:
    """Points of group `number`'s candidates, ties and both ends included."""
    return tuple(float(v) for v in np.random.default_rng([number, 3]).choice([0, 7, 35, 50, 88, 100], 4))


@dataclass
class SmallExamples:
    """Stands for `Examples`: so many groups in each split, shown in a shuffled order each."""

    splits: Sequence[str]
    paired: bool = False
    """Groups 2i and 2i + 1 hold the same candidates, shown in two orders."""
    calls: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    @property
    def items(self) -> tuple[Example, ...]:
        return tuple(
            Example(f"group{i}", f"{i:064d}", f"condition{i}", i, split, "normal", scores_of(self.content(i)), None)
            for i, split in enumerate(self.splits)
        )

    def content(self, number: int) -> int:
        return number // 2 if self.paired else number

    def of_split(self, split: str) -> tuple[Example, ...]:
        return tuple(item for item in self.items if item.split == split)

    def payload(self, example: Example, order: Sequence[int] | None = None) -> GroupPayload:
        chosen = self.order(example) if order is None else tuple(order)
        self.calls.append((example.group_id, chosen))
        return payload_of(self.content(example.cluster), chosen)

    def order(self, example: Example) -> tuple[int, ...]:
        return tuple(int(k) for k in np.random.default_rng([example.cluster, 1]).permutation(4))
