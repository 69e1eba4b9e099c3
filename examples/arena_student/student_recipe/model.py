"""The model being trained on groups drawn on the device, with heads that are thrown away afterwards.

The answer alone teaches little per group, so three linear heads at the mark behind each picture learn what a judge must
see on the way: the picture's own readings, their distance from the reference at the same time, and behind a candidate's
last picture its score. Shapes: B groups, I pictures a group, P patches, D values, T visual tokens, L tokens, W width,
V futures, S frames shown, R readings, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stateplay_rl.arena.dataset import ArenaCondition
from stateplay_rl.reward_model.answers import AnswerForm
from stateplay_rl.reward_model.chat import ChatFormat
from stateplay_rl.reward_model.language import NO_MASKS
from stateplay_rl.reward_model.payload import ImagePart, TextPart
from stateplay_rl.reward_model.pictures import Grid
from stateplay_rl.reward_model.small_model import SmallSizes
from stateplay_rl.reward_model.vision import tower_features, tower_geometry
from student_recipe.data import READINGS, Futures
from student_recipe.prompts import CANDIDATES, FRAMES_SHOWN, request_parts

SIZES = SmallSizes(
    hidden=192,
    layers=8,
    full_interval=4,
    intermediate=512,
    heads=4,
    kv_heads=2,
    head_dim=48,
    linear_heads=3,
    linear_value_heads=6,
    linear_dim=32,
    vision_hidden=128,
    vision_layers=3,
    vision_heads=4,
    vision_intermediate=512,
    smallest_pixels=1024,
    largest_pixels=1 << 20,
)
GRID = Grid(4, 6)
PICTURES = 1 + FRAMES_SHOWN * (1 + CANDIDATES)
MAX_ANSWER = 40
NOISE = 6.0
"""Largest deviation of the noise on a group's pictures, of 255: a decoder's pictures are not clean."""


@dataclass(frozen=True)
class PromptTable:
    """Prompts of all conditions, padded on the right.

    Args:
        ids_NL: tokens; the answer's place is left free.
        positions_N3L: M-RoPE positions, the answer's included.
        lengths_N: tokens of each prompt.
        image_places_NQ: places of the visual tokens.
        mark_places_NI: place of the token behind each picture.
    """

    ids_NL: Tensor
    positions_N3L: Tensor
    lengths_N: Tensor
    image_places_NQ: Tensor
    mark_places_NI: Tensor


class _RememberingChat(ChatFormat):
    """A chat format that tokenises a text once: most texts stand in every request."""

    def __init__(self, tokenizer: Any, image_token_id: int) -> None:
        self._known: dict[str, list[int]] = {}
        super().__init__(tokenizer, image_token_id)

    def text(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = super().text(text)
        return self._known[text]


class PromptRows:
    """Tokens of requests, made one by one.

    Args:
        model: the student, on the CPU.
        tokenizer: its tokenizer.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self.chat = _RememberingChat(tokenizer, int(model.config.image_token_id))
        self._rows: list[tuple[int, ...]] = []

    def add(self, conditions: Sequence[ArenaCondition]) -> None:
        """Tokenise the requests of some conditions."""
        picture, tokens = ImagePart(b"", ""), [GRID.tokens(2)] * PICTURES
        for condition in conditions:
            parts: list[TextPart | ImagePart] = [picture if part is None else part for part in request_parts(condition)]
            self._rows.append(self.chat.prompt(parts, tokens).ids)

    def table(self) -> PromptTable:
        """Tokens and positions of everything added."""
        tokens, rows = GRID.tokens(2), self._rows
        longest = max(len(row) for row in rows) + MAX_ANSWER
        # Whole chunks of the delta rule: nothing is padded inside the step.
        longest += -longest % 64
        ids_NL = torch.zeros(len(rows), longest, dtype=torch.int32)
        places, positions = [], []
        grid_thw = torch.tensor([[1, GRID.rows, GRID.columns]] * PICTURES)
        # Positions depend on the places of the pictures alone.
        known: dict[bytes, Tensor] = {}
        for i, row in enumerate(rows):
            ids_NL[i, : len(row)] = torch.tensor(row, dtype=torch.int32)
            image_L = ids_NL[i] == self.chat.image_id
            places.append(image_L.nonzero()[:, 0])
            key = places[-1].numpy().tobytes()
            if key not in known:
                found, _ = self._model.model.get_rope_index(
                    ids_NL[i : i + 1].long(), image_L[None].int(), image_grid_thw=grid_thw
                )
                known[key] = found[:, 0].int()
            positions.append(known[key])
        places_NQ = torch.stack(places)
        return PromptTable(
            ids_NL,
            torch.stack(positions),
            torch.tensor([len(row) for row in rows]),
            places_NQ,
            places_NQ[:, tokens - 1 :: tokens] + 1,
        )


def patches_of(pictures_NhwC: Tensor, patch: int = 16, merge: int = 2) -> Tensor:
    """Float patches [N, P, D] of uint8 or float pictures 0..255, ordered as the picture reader orders them."""
    count, height, width, _ = pictures_NhwC.shape
    scaled = pictures_NhwC.float() / 127.5 - 1.0
    rows, columns = height // (patch * merge), width // (patch * merge)
    split = scaled.reshape(count, rows, merge, patch, columns, merge, patch, 3)
    ordered = split.permute(0, 1, 4, 2, 5, 7, 3, 6)
    # The picture is its own second frame.
    twice = ordered.unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, 2, -1, -1)
    return twice.reshape(count, rows * columns * merge * merge, -1)


class StudentInTraining(nn.Module):
    """The student and its auxiliary heads."""

    def __init__(self, student: Any) -> None:
        super().__init__()
        self.student = student
        self.heads = nn.Linear(SIZES.hidden, 2 * READINGS + 1)
        self._geometry = None

    def prepare(self) -> None:
        """Positions of the patches, on the device, before a step is captured."""
        with torch.no_grad():
            self._geometry = tower_geometry(self.student.model.visual, GRID)

    def hidden(self, group: dict[str, Tensor]) -> Tensor:
        """Last hidden states [B, L, W]."""
        ids_BL, pictures = group["ids"].long(), group["pictures"]
        batch = len(ids_BL)
        features = tower_features(self.student.model.visual, patches_of(pictures.flatten(0, 1)), self._geometry)
        embedded_BLW = self.student.model.get_input_embeddings()(ids_BL)
        place = group["image_places"].long()[..., None].expand(-1, -1, embedded_BLW.shape[-1])
        embedded_BLW = embedded_BLW.scatter(1, place, features.reshape(batch, -1, features.shape[-1]).to(embedded_BLW))
        found: Tensor = self.student.model.language_model(
            inputs_embeds=embedded_BLW,
            position_ids=group["positions"].long().transpose(0, 1),
            attention_mask=NO_MASKS,
            use_cache=False,
        ).last_hidden_state
        return found

    def last_scores(self, group: dict[str, Tensor]) -> Tensor:
        """The score head's points [B, K] behind each candidate's last picture."""
        last = FRAMES_SHOWN * torch.arange(2, 2 + CANDIDATES, device=group["ids"].device)
        seen = self.heads(_gather(self.hidden(group), group["mark_places"][:, last]))
        return 100.0 * seen[..., -1].float()

    def forward(self, group: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Answer's cross-entropy and the heads' loss of B groups."""
        hidden_BLW = self.hidden(group)
        asked = _gather(hidden_BLW, group["answer_places"])
        logits = self.student.lm_head(asked).float()
        answer = F.cross_entropy(logits.flatten(0, 1), group["answer"].long().flatten(), ignore_index=-100)
        seen = self.heads(_gather(hidden_BLW, group["mark_places"])).float()
        target, weight = group["targets"], group["target_weights"]
        heads = (F.smooth_l1_loss(seen, target, beta=0.05, reduction="none") * weight).sum() / weight.sum()
        return answer, heads


def _gather(hidden_BLW: Tensor, places_BQ: Tensor) -> Tensor:
    return hidden_BLW.gather(1, places_BQ.long()[..., None].expand(-1, -1, hidden_BLW.shape[-1]))


class GroupSampler:
    """Draws groups: four different futures of a condition in any order, noisy, with the referee's scores.

    Args:
        data: rendered futures; pictures and tables are moved to `device`.
        form: the answer's tokens.
    """

    def __init__(self, data: Futures, table: PromptTable, form: AnswerForm, device: torch.device, seed: int) -> None:
        self._data, self._form, self._device = data.arrays, form, device
        self._first = torch.from_numpy(self._data.first_NhwC).to(device)
        self._frames = torch.from_numpy(self._data.frames_NVShwC).to(device)
        self._table = PromptTable(*(value.to(device) for value in vars(table).values()))
        self._lengths = table.lengths_N.numpy()
        self._rng = np.random.default_rng(seed)
        self._noise = torch.Generator(device).manual_seed(seed)

    def draw(self, batch: int, conditions: np.ndarray | None = None, clean: bool = False) -> dict[str, Tensor]:
        """Tensors of `batch` groups on the device.

        Args:
            conditions: which conditions; None draws them.
            clean: no noise on the pictures.
        """
        rng, futures = self._rng, self._data.scores_NV.shape[1]
        pick_B = rng.integers(len(self._data.scores_NV), size=batch) if conditions is None else conditions
        chosen_BK = np.stack([rng.permutation(futures)[:CANDIDATES] for _ in range(batch)])
        raw_BK = self._data.scores_NV[pick_B[:, None], chosen_BK]
        scores_BK = np.rint(raw_BK).astype(int)
        ids, answer, places = self._answers(pick_B, scores_BK)
        targets, weights = self._targets(pick_B, chosen_BK, raw_BK)
        pick, chosen = self._sent(pick_B), self._sent(chosen_BK)
        shown = [self._first[pick][:, None], self._frames[pick, 0]]
        shown += [self._frames[pick, chosen[:, k]] for k in range(CANDIDATES)]
        pictures = torch.cat(shown, dim=1).float()
        if not clean:
            pictures = self._disturb(pictures)
        table = self._table
        tensors = {
            "ids": table.ids_NL[pick],
            "pictures": pictures,
            "image_places": table.image_places_NQ[pick],
            "mark_places": table.mark_places_NI[pick],
            "positions": table.positions_N3L[pick],
        }
        for name, value in (("answer", answer), ("answer_places", places), ("targets", targets)):
            tensors[name] = self._sent(value)
        tensors["target_weights"], tensors["scores"] = self._sent(weights), self._sent(raw_BK)
        rows, columns, tokens = (self._sent(x) for x in ids)
        tensors["ids"][rows, columns] = tokens.int()
        return tensors

    def _sent(self, values: np.ndarray) -> Tensor:
        """On the device, without waiting for the step that it is computing."""
        tensor = torch.from_numpy(values)
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor

    def _answers(
        self, pick_B: np.ndarray, scores_BK: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
        """Answer tokens: where they go, the targets [B, A] and the places that predict them."""
        answer = np.full((len(pick_B), MAX_ANSWER), -100, np.int64)
        places = np.zeros((len(pick_B), MAX_ANSWER), np.int64)
        rows, columns, tokens = [], [], []
        for row, (condition, scores) in enumerate(zip(pick_B, scores_BK, strict=True)):
            found = self._form.tokens(scores.tolist())
            start = int(self._lengths[condition])
            answer[row, : len(found)] = found
            places[row, : len(found)] = np.arange(start - 1, start - 1 + len(found))
            rows += [row] * len(found)
            columns += range(start, start + len(found))
            tokens += found
        return (np.array(rows), np.array(columns), np.array(tokens)), answer, places

    def _targets(
        self, pick_B: np.ndarray, chosen_BK: np.ndarray, scores_BK: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Targets and weights [B, I, 2R + 1] of the heads."""
        readings = self._data.readings_NVSR
        reference = readings[pick_B, 0]
        shown = [reference[:, :1], reference]
        shown += [readings[pick_B, chosen_BK[:, k]] for k in range(CANDIDATES)]
        own = np.concatenate(shown, axis=1)
        gap = own - np.concatenate([reference[:, :1], *[reference] * (1 + CANDIDATES)], axis=1)
        score = np.zeros((*own.shape[:2], 1), np.float32)
        weight = np.ones((*own.shape[:2], 2 * READINGS + 1), np.float32)
        weight[..., -1] = 0.0
        last = FRAMES_SHOWN * np.arange(2, 2 + CANDIDATES)
        score[:, last, 0] = scores_BK / 100.0
        weight[:, last, -1] = 8.0
        # Distances are small numbers: they count for more.
        return np.concatenate([own, 4.0 * gap, score], axis=2).astype(np.float32), weight

    def _disturb(self, pictures: Tensor) -> Tensor:
        """Noise, a little blur and a shift of brightness per group, as decoders make them."""
        batch = len(pictures)
        strength, blur, shift = torch.rand(3, batch, 1, 1, 1, 1, device=self._device, generator=self._noise)
        planes = pictures.flatten(0, 1).permute(0, 3, 1, 2)
        smooth = F.avg_pool2d(planes, 3, 1, 1, count_include_pad=False).permute(0, 2, 3, 1).unflatten(0, (batch, -1))
        pictures = torch.lerp(pictures, smooth, 0.5 * blur)
        noise = torch.randn(pictures.shape, device=self._device, generator=self._noise)
        return (pictures + NOISE * strength * noise + 6.0 * (shift - 0.5)).clamp(0, 255)
