"""Lazy, cached access to what the objective needs: conditions, stored latents, real clips."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stateplay_rl.stages.candidates import condition_inputs
from stateplay_rl.stages.train_nft.draws import RealClip
from stateplay_rl.stages.train_nft.in_flight import InFlight
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore, StoredGroup
from stateplay_rl.worlds.base import ConditionBatch, World
from stateplay_rl.worlds.encoded import EncodedStore


class BatchData:
    """Everything that the samples of one batch look up; emptied after each batch, so memory stays flat."""

    def __init__(
        self,
        world: World,
        conditions: ConditionStore,
        groups: GroupStore,
        encoded: EncodedStore,
        in_flight: InFlight,
    ) -> None:
        self.in_flight = in_flight
        self._world = world
        self._conditions = conditions
        self._read: Callable[[str], StoredGroup] = groups.read
        self._encoded = encoded
        self._encoded_conditions: dict[str, ConditionBatch] = {}
        self._latents: dict[tuple[str, int], Tensor] = {}
        self._clips: dict[str, RealClip | None] = {}

    def read_from(self, read: Callable[[str], StoredGroup]) -> None:
        """Take groups from elsewhere than the segment (a hand-made batch)."""
        self._read = read

    def conditions_of(self, ids: Sequence[str]) -> ConditionBatch:
        """Encoded conditions of equal length, one row per id (repeats allowed)."""
        for condition_id in ids:
            if condition_id not in self._encoded_conditions:
                record = self._conditions.by_id(condition_id)
                inputs = condition_inputs(self._conditions, record, self._world)
                self._encoded_conditions[condition_id] = self._world.encode_conditions([inputs])
        parts = [self._encoded_conditions[i] for i in ids]
        if len(parts) == 1:
            return parts[0]  # the same tensors each time: a world knows their text keys and values again
        return ConditionBatch(
            tuple(ids),
            torch.cat([p.first_latent_BC1HW for p in parts]),
            torch.cat([p.action_bins_BfK for p in parts]),
            torch.cat([p.text_BLD for p in parts]),
        )

    def latents_of(self, sample: Sample) -> Tensor:
        """Stored clean latents of a candidate, float32 [C, f, H, W] (values as stored, bf16)."""
        key = (sample.group_id, sample.candidate)
        if key not in self._latents:
            self._latents[key] = self._read(sample.group_id).latents(sample.candidate).float()
        return self._latents[key]

    def has_clip(self, condition_id: str) -> bool:
        """Whether the condition has a clip of its own."""
        return self._conditions.by_id(condition_id).clip is not None

    def real_of(self, condition_id: str) -> RealClip | None:
        """Latents and codes of the condition's own clip; None when it has none."""
        if condition_id not in self._clips:
            record = self._conditions.by_id(condition_id)
            if record.clip is None:
                self._clips[condition_id] = None
            else:
                entry = self._encoded.clip(self._conditions, record)
                self._clips[condition_id] = RealClip(entry.latents.float(), entry.codes)
        return self._clips[condition_id]

    def warm(self, condition_id: str) -> None:
        """Encode the condition's real clip into the store, so that the update finds it there."""
        record = self._conditions.by_id(condition_id)
        if record.clip is not None and not self._encoded.path(condition_id).is_file():
            self._encoded.clip(self._conditions, record)

    def clear(self) -> None:
        """Forget the batch."""
        self._encoded_conditions.clear()
        self._latents.clear()
        self._clips.clear()
