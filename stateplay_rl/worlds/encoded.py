"""The `encoded/` store: what training needs of a real clip, encoded once and shared by runs.

`<encoders>/<condition id>.safetensors`, where `<encoders>` begins the hash of VAE, text encoder and
tokenizer: worlds with other encoders never read each other's entries.

Shapes: C latent channels, f latent slots, H W latent grid, L text tokens, D text width, M codes per
slot pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores.atomic import sha256_json
from stateplay_rl.stores.conditions import ConditionRecord, ConditionStore
from stateplay_rl.stores.hashing import hash_frames, hash_tensor
from stateplay_rl.stores.layout import encoded_file
from stateplay_rl.stores.video import decode_mp4
from stateplay_rl.worlds.base import ConditionInputs, World
from stateplay_rl.worlds.native.weights import write_safetensors

KEY_LENGTH = 16
"""Hex digits of the encoders' hash in the folder name; the whole hash stands in each file."""

TENSORS = ("latents", "first_latent", "context", "codes")


@dataclass(frozen=True)
class EncodedClip:
    """A condition's real clip.

    Args:
        latents: normalised clip latents, bfloat16 [C, f, H, W].
        first_latent: the first frame's latent as sampling uses it, bfloat16 [C, 1, H, W].
        context: text context without the zeroed positions past the prompt, float32 [L', D], L' <= L.
        codes: the tokenizer's codes of the clip before rounding to bfloat16, int64 [f-1, M].
    """

    latents: Tensor
    first_latent: Tensor
    context: Tensor
    codes: Tensor


class EncodedStore:
    """Encoded clips, built on demand; any number of processes may share a folder (writes are atomic)."""

    def __init__(self, root: Path, world: World) -> None:
        self._world = world
        self.folder = root / world.encoder_sha256[:KEY_LENGTH]

    def path(self, condition_id: str) -> Path:
        """Where a condition's entry lies."""
        return self.folder / encoded_file(condition_id)

    def clip(self, conditions: ConditionStore, record: ConditionRecord) -> EncodedClip:
        """The entry of a condition, encoded now if it is not there yet.

        Raises:
            InputError: the condition has no clip, or the clip is missing, too short or of another size.
            CorruptionError: the stored entry is damaged or belongs to another condition.
        """
        path = self.path(record.condition_id)
        if not path.is_file():
            self._build(conditions, record, path)
        return self._read(path, record)

    def _build(self, conditions: ConditionStore, record: ConditionRecord, path: Path) -> None:
        clip = conditions.clip_path(record)
        if clip is None:
            raise InputError(
                f"condition {record.condition_id} has no clip, so there is nothing to encode",
                "leave it out of real-clip losses, or build the conditions from data with videos",
            )
        frames_ThwC = decode_mp4(clip)
        if len(frames_ThwC) < record.frames:
            raise InputError(
                f"condition {record.condition_id}: {clip} has {len(frames_ThwC)} frames, {record.frames} needed",
                "build the conditions again",
            )
        frames_ThwC = frames_ThwC[: record.frames]
        latents_CfHW = self._world.encode_video(frames_ThwC)
        batch = self._world.encode_conditions(
            [
                ConditionInputs(
                    record.condition_id,
                    conditions.first_frame(record.condition_id),
                    conditions.held_actions(record.condition_id),
                    record.prompt,
                    record.latent_frames,
                )
            ]
        )
        text_LD = batch.text_BLD[0]
        used = int(text_LD.abs().sum(dim=1).nonzero().max()) + 1
        tensors = {
            "latents": latents_CfHW.to(torch.bfloat16),
            "first_latent": batch.first_latent_BC1HW[0].to(torch.bfloat16),
            "context": text_LD[:used].float(),
            "codes": self._world.transition_codes(latents_CfHW[None])[0],
        }
        metadata = {
            **self._expected(record),
            "clip_frames_sha256": hash_frames(frames_ThwC),
            "tensors_sha256": _content_hash(tensors),
        }
        write_safetensors(path, tensors, metadata)

    def _read(self, path: Path, record: ConditionRecord) -> EncodedClip:
        hint = f"delete {path}; it is built again on demand"
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata: dict[str, str] = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in TENSORS}
        except SafetensorError as error:
            raise CorruptionError(f"{path} is damaged ({error})", hint) from error
        for field, expected in self._expected(record).items():
            if metadata.get(field) != expected:
                raise CorruptionError(f"{path}: {field} is {metadata.get(field)}, expected {expected}", hint)
        if metadata.get("tensors_sha256") != _content_hash(tensors):
            raise CorruptionError(f"{path}: its tensors do not match their recorded hash", hint)
        return EncodedClip(**tensors)

    def _expected(self, record: ConditionRecord) -> dict[str, str]:
        return {
            "condition_id": record.condition_id,
            "encoder_sha256": self._world.encoder_sha256,
            "frames": str(record.frames),
        }


def _content_hash(tensors: dict[str, Tensor]) -> str:
    return sha256_json({name: hash_tensor(tensors[name]) for name in TENSORS})
