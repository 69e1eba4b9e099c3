"""Conditions and real clips of the study, drawn and encoded once and shared by all arms.

The clips go from the renderer to the VAE as they are: no MP4 in between, as `sprl build-conditions` would have.
Shapes: N conditions, C latent channels, f latent slots, H W latent grid, K buttons, L text tokens, D text width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from stateplay_rl.arena.dataset import (
    CLEAR_CHANGE,
    ArenaCondition,
    class_sequence,
    draw_condition,
    render,
    simulate,
)
from stateplay_rl.arena.game import simulate_first
from stateplay_rl.arena.state import FRAMES, WINDOW_FRAMES, Glitches, Trajectory
from stateplay_rl.evaluation.picture import measure_detail, measure_picture
from stateplay_rl.stages.train_nft.draws import RealClip
from stateplay_rl.worlds.base import ConditionBatch, ConditionInputs, World
from stateplay_rl.worlds.preparation import bin_actions

PIECE = 80
"""Conditions of one file: a piece of work for one process."""
LONG_SLOTS = 13
LONG_FRAMES = 4 * (LONG_SLOTS - 1) + 1
"""A rollout beyond the 9 slots (33 frames) that the base was trained on."""
GLITCH_PROBABILITY = 0.5


@dataclass(frozen=True)
class Piece:
    """Conditions `number * PIECE` and following of the data set of a clip seed that holds `total` conditions."""

    seed: int
    total: int
    number: int

    @property
    def indices(self) -> range:
        return range(self.number * PIECE, min((self.number + 1) * PIECE, self.total))

    def path(self, root: Path) -> Path:
        return root / f"clips-{self.seed}-{self.total}-{self.number}.pt"


def pieces(seed: int, total: int) -> list[Piece]:
    """All pieces of a data set."""
    return [Piece(seed, total, number) for number in range(-(-total // PIECE))]


def longer_buttons(condition: ArenaCondition, slots: int) -> np.ndarray:
    """Held buttons uint8 [4 slots, 11]: the clip's own windows, then the same ones from the start again."""
    rows = np.arange(slots * WINDOW_FRAMES) % len(condition.held_buttons)
    return condition.held_buttons[rows]


def true_trajectory(condition: ArenaCondition, frames: int = FRAMES) -> Trajectory:
    """What the true engine does, for as many frames as asked."""
    slots = (frames - 1) // WINDOW_FRAMES + 1
    return simulate_first(condition.first, longer_buttons(condition, slots), condition.strategy, frames=frames)


def _glitches(condition: ArenaCondition) -> Glitches:
    """As in the base model's training: every flag on its own, with probability one half."""
    draw = np.random.default_rng([condition.seed, condition.index, 0x61]).random(3) < GLITCH_PROBABILITY
    return Glitches(*(bool(value) for value in draw))


def write_piece(piece: Piece, root: Path, world: World) -> None:
    """Draw, render and encode a piece; a finished one is kept."""
    target = piece.path(root)
    if target.is_file():
        return
    classes = class_sequence(piece.total, piece.seed)
    conditions = [draw_condition(piece.seed, i, classes[i], CLEAR_CHANGE) for i in piece.indices]
    truths = [render(simulate(c)) for c in conditions]
    mixture = [render(simulate(c, _glitches(c))) for c in conditions]
    inputs = [
        ConditionInputs(f"{c.seed}-{c.index}", v[0], c.held_buttons.astype(np.float32), c.prompt, 9)
        for c, v in zip(conditions, truths, strict=True)
    ]
    encoded = world.encode_conditions(inputs)
    stored: dict[str, object] = {
        "conditions": conditions,
        "ids": encoded.condition_ids,
        "first": encoded.first_latent_BC1HW.cpu(),
        "bins": encoded.action_bins_BfK.cpu(),
        "text": encoded.text_BLD.cpu(),
        "pictures": [{**measure_picture(v), **measure_detail(v)} for v in truths],
    }
    for name, videos in (("true", truths), ("mixture", mixture)):
        latents = world.encode_video(np.stack(videos))
        stored[name] = latents.to(torch.bfloat16).cpu()
        stored[f"{name}_codes"] = world.transition_codes(latents).cpu()
    part = target.with_suffix(".part")
    torch.save(stored, part)
    part.rename(target)


@dataclass(frozen=True)
class ClipSet:
    """A data set on a device.

    Args:
        conditions: what each condition is.
        batch: all conditions, encoded.
        latents_NCfHW, codes_NfM: real clips and their codes.
        pictures: measures of each true clip.
    """

    conditions: tuple[ArenaCondition, ...]
    batch: ConditionBatch
    latents_NCfHW: Tensor
    codes_NfM: Tensor
    pictures: tuple[dict[str, float], ...]

    @property
    def rows(self) -> dict[str, int]:
        """Condition id -> row."""
        return {name: row for row, name in enumerate(self.batch.condition_ids)}

    def clip(self, row: int) -> RealClip:
        """A condition's real clip."""
        return RealClip(self.latents_NCfHW[row], self.codes_NfM[row])

    def longer(self, slots: int) -> ConditionBatch:
        """The same conditions with more slots."""
        bins = np.stack([bin_actions(longer_buttons(c, slots).astype(np.float32), slots) for c in self.conditions])
        batch = self.batch
        on_device = torch.from_numpy(bins).to(batch.text_BLD.device)
        return ConditionBatch(batch.condition_ids, batch.first_latent_BC1HW, on_device, batch.text_BLD)


def load_clip_set(
    root: Path, seed: int, total: int, clips: Literal["true", "mixture"], device: torch.device, count: int | None = None
) -> ClipSet:
    """The first `count` conditions (all, if None) of a data set whose pieces are written.

    Args:
        clips: which real clips: the true engine's, or the base model's mixture of right and wrong mechanics.
    """
    parts = [
        torch.load(piece.path(root), weights_only=False, map_location="cpu")
        for piece in pieces(seed, total)
        if count is None or piece.number * PIECE < count
    ]

    def joined(name: str) -> Tensor:
        return torch.cat([part[name] for part in parts])[:count].to(device)

    def listed(name: str) -> list[object]:
        return [item for part in parts for item in part[name]][:count]

    ids: Sequence[str] = [str(name) for name in listed("ids")]
    batch = ConditionBatch(tuple(ids), joined("first"), joined("bins"), joined("text"))
    conditions: tuple[ArenaCondition, ...] = tuple(listed("conditions"))  # type: ignore[arg-type]
    pictures: tuple[dict[str, float], ...] = tuple(listed("pictures"))  # type: ignore[arg-type]
    return ClipSet(conditions, batch, joined(clips), joined(f"{clips}_codes"), pictures)
