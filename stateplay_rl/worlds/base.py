"""The `World` protocol: all that the rest of the package sees of a world model.

Shapes: B batch, C latent channels, f latent slots, H W latent height and width, T frames,
h w picture height and width, K buttons (11), L text tokens, D text width, M state tokens per slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from stateplay_rl.errors import InputError
from stateplay_rl.worlds.transfer import to_device

PolicyName = Literal["live", "old", "reference"]
ParameterMode = Literal["transition", "coupling", "joint", "full"]


@dataclass(frozen=True)
class WorldSpec:
    """Sizes that other modules need; all read from the world's own files or config."""

    name: str
    frame_height: int
    frame_width: int
    fps: float
    latent_channels: int
    spatial_factor: int
    temporal_factor: int
    buttons: int = 11

    def latent_frames(self, frames: int) -> int:
        """Latent slots of a video of `frames` = 1 (mod temporal_factor) frames."""
        return (frames - 1) // self.temporal_factor + 1


@dataclass(frozen=True)
class ConditionInputs:
    """What a candidate may depend on: first frame, buttons, text.

    Args:
        condition_id: content hash of the condition.
        first_frame_hwc: uint8 RGB [h, w, 3], already scaled and cropped to the world's size.
        held_actions_RK: float32 [rows, 11] in {0, 1}: the held per-row signal.
        prompt: the text as stored (cleaned inside the world's text side).
        latent_frames: f, the number of latent slots to generate.
    """

    condition_id: str
    first_frame_hwc: np.ndarray
    held_actions_RK: np.ndarray
    prompt: str
    latent_frames: int


def row_index(rows: Sequence[int], count: int, device: torch.device) -> Tensor | None:
    """Rows to take of `count`, on their device; None when they are all of them in order."""
    if list(rows) == list(range(count)):
        return None
    return to_device(torch.as_tensor(list(rows)), device)


@dataclass(frozen=True)
class ConditionBatch:
    """Encoded conditions: `first_latent_BC1HW`, `action_bins_BfK` float, `text_BLD` with positions past
    the prompt zeroed; all on the world's device. Every sample of a batch has the same f."""

    condition_ids: tuple[str, ...]
    first_latent_BC1HW: Tensor
    action_bins_BfK: Tensor
    text_BLD: Tensor

    def __len__(self) -> int:
        return len(self.condition_ids)

    @property
    def latent_frames(self) -> int:
        return int(self.action_bins_BfK.shape[1])

    def select(self, indices: Sequence[int]) -> ConditionBatch:
        """Rows `indices` (repeats allowed) as a new batch."""
        index = row_index(indices, len(self), self.text_BLD.device)
        if index is None:
            return self
        return ConditionBatch(
            tuple(self.condition_ids[i] for i in indices),
            self.first_latent_BC1HW[index],
            self.action_bins_BfK[index],
            self.text_BLD[index],
        )


@dataclass(frozen=True)
class StateSequence:
    """Latent-state sequence of a batch: depends on first frame and actions only.

    low_BfMS: [B, f, M, C_s] before, tokens_BNC: [B, M*f, C] after the output projection.
    """

    low_BfMS: Tensor
    tokens_BNC: Tensor

    def select(self, rows: Sequence[int]) -> StateSequence:
        """Rows `rows` (repeats allowed) as a new sequence; gradients flow through it."""
        index = row_index(rows, len(self.low_BfMS), self.low_BfMS.device)
        if index is None:
            return self
        return StateSequence(self.low_BfMS[index], self.tokens_BNC[index])

    def leaf(self) -> Self:
        """The same values cut off from their graph: gradients collect here until `backward_from` passes them on."""
        return replace(
            self,
            low_BfMS=self.low_BfMS.detach().requires_grad_(self.low_BfMS.requires_grad),
            tokens_BNC=self.tokens_BNC.detach().requires_grad_(self.tokens_BNC.requires_grad),
        )

    def backward_from(self, leaf: StateSequence) -> None:
        """Pass the gradients that a leaf of this sequence collected on to the parameters."""
        pairs = ((self.low_BfMS, leaf.low_BfMS.grad), (self.tokens_BNC, leaf.tokens_BNC.grad))
        found = [(value, grad) for value, grad in pairs if grad is not None]
        if found:
            torch.autograd.backward([value for value, _ in found], [grad for _, grad in found])


@dataclass(frozen=True)
class WorldOutput:
    """One transformer evaluation: velocity [B, C, f, H, W] (slot 0 is meaningless)."""

    velocity_BCfHW: Tensor
    states: StateSequence


@dataclass(frozen=True)
class ParameterGroup:
    """A named, audited list of trained parameters (`names` are the world's own parameter names)."""

    name: str
    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]

    @property
    def count(self) -> int:
        return sum(p.numel() for p in self.parameters)


def check_inputs(spec: WorldSpec, inputs: Sequence[ConditionInputs]) -> None:
    """Raise InputError unless the conditions are of the world's size and of one length (naming the condition)."""
    if not inputs:
        raise InputError("no conditions to encode", "give at least one")
    expected = (spec.frame_height, spec.frame_width, 3)
    slots = inputs[0].latent_frames
    for item in inputs:
        if item.first_frame_hwc.shape != expected or item.first_frame_hwc.dtype != np.uint8:
            raise InputError(
                f"condition {item.condition_id}: first frame is {item.first_frame_hwc.dtype} "
                f"{list(item.first_frame_hwc.shape)}, world {spec.name} needs uint8 {list(expected)}",
                "build the conditions for this world's size",
            )
        if item.held_actions_RK.ndim != 2 or item.held_actions_RK.shape[1] != spec.buttons:
            raise InputError(
                f"condition {item.condition_id}: actions of shape {list(item.held_actions_RK.shape)}, "
                f"expected [rows, {spec.buttons}]",
                "build the conditions again",
            )
        if item.latent_frames != slots:
            raise InputError(
                f"condition {item.condition_id} has {item.latent_frames} latent slots, the first one {slots}",
                "encode conditions of equal length together",
            )


class Policies(Protocol):
    """live, old and reference parameter sets; only the trained parameters exist three times."""

    def use(self, policy: PolicyName) -> AbstractContextManager[None]:
        """Make `policy` current inside the block; raises inside an open live window."""

    def live_window(self) -> AbstractContextManager[None]:
        """From a live forward to the end of its backward: switching inside raises."""

    def sha256(self, policy: PolicyName) -> str:
        """Content hash of the trained parameters (names, shapes, float32 bytes)."""

    def state(self, policy: PolicyName) -> dict[str, Tensor]:
        """Copies of the trained parameters, float32, on the CPU."""

    def load(self, policy: PolicyName, state: dict[str, Tensor]) -> None:
        """Overwrite `live` or `old` in place; `reference` refuses."""

    def update_old(self, weight_on_old: float) -> None:
        """old <- weight_on_old * old + (1 - weight_on_old) * live, in float32."""

    def distance(self, left: PolicyName, right: PolicyName) -> float:
        """Euclidean distance of two parameter sets."""


OwnSampler = Callable[[Tensor, Tensor, "ConditionBatch"], Tensor]
"""(noise [B, C, f, H, W], sigmas [steps], conditions) -> clean latents [B, C, f, H, W], under the current policy."""


class World(Protocol):
    """A world model: conditions in, candidate videos and trainable velocities out.

    `sha256` is the hash of all its weights, `encoder_sha256` of those that encode clips (VAE, text encoder,
    tokenizers): worlds with equal encoders share encoded clips. `facts` are JSON values for manifests: the
    backend, and of a checkout its commit, dirty state and differences.
    """

    spec: WorldSpec
    sha256: str
    encoder_sha256: str
    facts: Mapping[str, Any]
    device: torch.device
    compute_dtype: torch.dtype
    policies: Policies
    own_sampler: OwnSampler | None
    """A checkout's sampler, found equal to the Euler loop; None: the Euler loop over `velocity`."""

    def encode_conditions(self, inputs: Sequence[ConditionInputs]) -> ConditionBatch:
        """First-frame latents, action bins and text of conditions with equal f."""

    def encode_video(self, frames_ThwC: np.ndarray) -> Tensor:
        """uint8 [T, h, w, 3], T = 1 (mod temporal_factor) -> normalised latents [C, f, H, W] float32."""

    def decode(self, latents_BCfHW: Tensor) -> np.ndarray:
        """Normalised latents -> uint8 [B, T, h, w, 3]."""

    def states(self, conditions: ConditionBatch) -> StateSequence:
        """State sequence under the current policy; differentiable when gradients are enabled."""

    def velocity(
        self,
        latents_BCfHW: Tensor,
        sigma_B: Tensor,
        conditions: ConditionBatch,
        states: StateSequence | None = None,
    ) -> WorldOutput:
        """Velocity under the current policy at one sigma per sample; slot 0 is overwritten by the first
        frame's latent inside. `states` (from `states()`, same policy) saves recomputing them."""

    def first_block_cache(self, threshold: float) -> AbstractContextManager[None]:
        """Inside the block, for one trajectory: when the first block's effect changes by less than `threshold` from
        one call of `velocity` to the next, the other blocks' effect is reused. UsageError where that cannot be."""

    def transition_logits(self, states: StateSequence, conditions: ConditionBatch) -> Tensor:
        """Predicted codes [B, f-1, M, codes] from the state sequence and the first f-1 action bins."""

    def transition_codes(self, latents_BCfHW: Tensor) -> Tensor:
        """Codes of the frozen tokenizer on clean latents: int64 [B, f-1, M]."""

    def set_mode(self, mode: ParameterMode) -> tuple[ParameterGroup, ...]:
        """Choose the trained parameters, freeze the rest, and build the policy bank for them."""

    def export_policy(self, policy: PolicyName) -> dict[str, Tensor]:
        """Trained weights as the checkpoint spells them: its key names and shapes, float32, LoRA merged."""

    def apply_policy(self, weights: Mapping[str, Tensor], source: str) -> None:
        """Lay an exported policy over the base weights, in its own precision; before `set_mode`."""
