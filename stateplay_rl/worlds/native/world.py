"""`NativeWorld`: the native transformer, VAE, text encoder and tokenizer behind the `World` protocol.

Shapes: B batch, C latent channels, f latent slots, H W latent grid, T frames, h w picture size, K buttons,
L text tokens, D text width, M state tokens per slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stateplay_rl.config.world import Checkpointing
from stateplay_rl.errors import UsageError
from stateplay_rl.worlds.base import (
    ConditionBatch,
    ConditionInputs,
    OwnSampler,
    ParameterGroup,
    ParameterMode,
    Policies,
    PolicyName,
    StateSequence,
    WorldOutput,
    WorldSpec,
    check_inputs,
    row_index,
)
from stateplay_rl.worlds.native import coupling_lora
from stateplay_rl.worlds.native.first_block import first_block_cache
from stateplay_rl.worlds.native.keymap import TrainingLayout
from stateplay_rl.worlds.native.modes import trained_groups
from stateplay_rl.worlds.native.policy_weights import overlay_weights, prepare_lora, trained_weights
from stateplay_rl.worlds.native.speed import PLAIN, Speed
from stateplay_rl.worlds.native.text import TextEncoder
from stateplay_rl.worlds.native.transformer import LatentStateTransformer, TextKeysValues
from stateplay_rl.worlds.native.transition_tokenizer import TransitionTokenizer
from stateplay_rl.worlds.native.vae import VideoVae
from stateplay_rl.worlds.policy_bank import PolicyBank
from stateplay_rl.worlds.preparation import bin_actions

TIMESTEPS = 1000.0
"""Model timestep of sigma 1."""


@dataclass(frozen=True)
class NativeModules:
    """The four networks of a native world, loaded and on one device, and how its checkpoint spells the first."""

    transformer: LatentStateTransformer
    tokenizer: TransitionTokenizer
    vae: VideoVae
    text: TextEncoder
    layout: TrainingLayout = field(default_factory=TrainingLayout)


@dataclass(frozen=True)
class WorldHashes:
    """Content hashes: of the whole world, and of the parts that encode clips (VAE, text, tokenizer)."""

    world_sha256: str
    encoder_sha256: str


@dataclass(frozen=True)
class NativeStates(StateSequence):
    """A state sequence with the text keys and values of the same conditions and policy."""

    text: TextKeysValues

    def select(self, rows: Sequence[int]) -> NativeStates:
        """Rows `rows` (repeats allowed) as a new sequence, their text along with them."""
        index = row_index(rows, len(self.low_BfMS), self.low_BfMS.device)
        if index is None:
            return self
        return NativeStates(self.low_BfMS[index], self.tokens_BNC[index], self.text.select(index))


class NativeWorld:
    """A world model in this process; see `World` for the meaning of each method.

    Args:
        spec: sizes.
        modules: the networks; frozen and put into eval mode here.
        hashes: content hashes of the weight files.
        device: where everything is.
        compute_dtype: dtype of matrix products; trained parameters are float32 in any case.
        checkpointing: blocks recomputed in the backward pass.
        speed: faster ways to the same numbers; none by default.
    """

    def __init__(
        self,
        spec: WorldSpec,
        modules: NativeModules,
        hashes: WorldHashes,
        *,
        device: torch.device,
        compute_dtype: torch.dtype,
        checkpointing: Checkpointing = "off",
        speed: Speed = PLAIN,
    ) -> None:
        self.spec = spec
        self.sha256 = hashes.world_sha256
        self.encoder_sha256 = hashes.encoder_sha256
        self.facts: Mapping[str, Any] = {"backend": "native"}
        self.own_sampler: OwnSampler | None = None
        self.device = device
        self.compute_dtype = compute_dtype
        self.transformer = modules.transformer.eval().requires_grad_(False)
        self.transformer.checkpointing = checkpointing
        self.speed = speed
        self.transformer.use_attention(speed.attention)
        self.transformer.use_kernels(speed.kernels)
        if speed.compiled:
            self.transformer.compile_blocks(dynamic=False)
        modules.vae.use_fused(speed.fused_vae)
        if speed.parked_text:
            modules.text.park()
        self._tokenizer = modules.tokenizer.eval().requires_grad_(False)
        self._vae = modules.vae
        self._text = modules.text
        self._layout = modules.layout
        self.modules = modules
        self._mode: ParameterMode | None = None
        self._last_text: tuple[Tensor, int, TextKeysValues] | None = None
        self._use_bank(PolicyBank({}))

    # -- conditions and clips ------------------------------------------------------------------------

    def encode_conditions(self, inputs: Sequence[ConditionInputs]) -> ConditionBatch:
        """First-frame latents, action bins and text of conditions with equal f.

        Raises:
            InputError: unequal f, or a first frame or action table of another size (naming the condition).
        """
        check_inputs(self.spec, inputs)
        slots = inputs[0].latent_frames
        frames_B1hwC = np.stack([item.first_frame_hwc[None] for item in inputs])
        bins = np.stack([bin_actions(item.held_actions_RK, slots) for item in inputs])
        return ConditionBatch(
            tuple(item.condition_id for item in inputs),
            self._vae.encode(frames_B1hwC).to(self.device),
            torch.from_numpy(bins).to(self.device),
            self._text.encode([item.prompt for item in inputs]).to(self.device),
        )

    def encode_video(self, frames_ThwC: np.ndarray) -> Tensor:
        """uint8 [T, h, w, 3], T = 1 (mod temporal_factor) -> normalised latents [C, f, H, W] float32."""
        return self._vae.encode(frames_ThwC)

    def decode(self, latents_BCfHW: Tensor) -> np.ndarray:
        """Normalised latents -> uint8 [B, T, h, w, 3]; a video does not depend on its batch."""
        return self._vae.decode(latents_BCfHW)

    # -- the networks --------------------------------------------------------------------------------

    def states(self, conditions: ConditionBatch) -> NativeStates:
        """State sequence under the current policy; carries the text keys and values along.

        Raises:
            RuntimeError: gradients are enabled outside a live window.
        """
        self._bank.check_forward()
        low_BfMS, tokens_BNC = self.transformer.state_sequence(
            conditions.first_latent_BC1HW, conditions.action_bins_BfK
        )
        return NativeStates(low_BfMS, tokens_BNC, self._text_keys_values(conditions.text_BLD))

    def velocity(
        self,
        latents_BCfHW: Tensor,
        sigma_B: Tensor,
        conditions: ConditionBatch,
        states: StateSequence | None = None,
    ) -> WorldOutput:
        """Velocity float32 [B, C, f, H, W] under the current policy; slot 0 of the latents is overwritten.

        Raises:
            RuntimeError: gradients are enabled outside a live window.
        """
        self._bank.check_forward()
        states = self.states(conditions) if states is None else states
        first_BC1HW = conditions.first_latent_BC1HW.to(latents_BCfHW.dtype)
        pinned_BCfHW = torch.cat([first_BC1HW, latents_BCfHW[:, :, 1:]], dim=2)
        velocity_BCfHW = self.transformer(
            pinned_BCfHW,
            sigma_B.to(self.device, torch.float32) * TIMESTEPS,
            conditions.action_bins_BfK,
            states.text if isinstance(states, NativeStates) else conditions.text_BLD,
            states.tokens_BNC,
        )
        return WorldOutput(velocity_BCfHW.float(), states)

    def first_block_cache(self, threshold: float) -> AbstractContextManager[None]:
        """Skip all blocks but the first where its effect changes by less than `threshold` from call to call."""
        return first_block_cache(self.transformer, threshold)

    def transition_logits(self, states: StateSequence, conditions: ConditionBatch) -> Tensor:
        """Predicted codes [B, f-1, M, codes] from the state sequence and the first f-1 action bins."""
        self._bank.check_forward()
        return self.transformer.transition_logits(states.low_BfMS, conditions.action_bins_BfK)

    def transition_codes(self, latents_BCfHW: Tensor) -> Tensor:
        """Codes of the frozen tokenizer on clean latents: int64 [B, f-1, M]."""
        return self._tokenizer.encode(latents_BCfHW.to(self.device))

    # -- policies ------------------------------------------------------------------------------------

    def set_mode(self, mode: ParameterMode) -> tuple[ParameterGroup, ...]:
        """Choose the trained parameters, freeze the rest, and build the policy bank for them.

        Raises:
            UsageError: unknown mode, or another choice after training or LoRA injection has begun.
            CheckError: the model lacks what the mode trains.
        """
        self._refuse_late_mode(mode)
        if mode in ("coupling", "joint"):
            prepare_lora(self.transformer, self.device)
        self.transformer.eval().requires_grad_(False)
        groups = trained_groups(self.transformer, mode)
        trained = {
            name: parameter for group in groups for name, parameter in zip(group.names, group.parameters, strict=True)
        }
        for parameter in trained.values():
            # Masters in float32, whatever the file holds: small updates vanish in bfloat16.
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
        chosen = {id(parameter) for parameter in trained.values()}
        frozen = [parameter for parameter in self._all_parameters() if id(parameter) not in chosen]
        self._use_bank(PolicyBank(trained, frozen))
        self._mode = mode
        self._last_text = None
        return groups

    def export_policy(self, policy: PolicyName) -> dict[str, Tensor]:
        """Trained weights under the training repository's key names, float32, on the CPU; LoRA merged in.

        Raises:
            UsageError: no mode is set, so nothing is trained.
        """
        if self._mode is None:
            raise UsageError("no parameter mode is set, so there is no policy to export", "call set_mode first")
        with self._bank.use(policy):
            return trained_weights(self.transformer, self._bank.names, self._layout)

    def apply_policy(self, weights: Mapping[str, Tensor], source: str) -> None:
        """Overlay an exported policy on the base weights; before `set_mode`, whose reference it becomes.

        Args:
            weights: tensors under the training repository's key names.
            source: the file, for messages.

        Raises:
            UsageError: a mode is already set.
            InputError: a key is unknown or of another shape.
        """
        if self._mode is not None:
            raise UsageError("a policy must be applied before the parameter mode is set", "load the world again")
        overlay_weights(self.transformer, weights, source, self._layout)
        self._last_text = None

    # -- helpers -------------------------------------------------------------------------------------

    def _refuse_late_mode(self, mode: ParameterMode) -> None:
        if self._mode is None:
            return
        self._bank.verify_reference()
        trained = self._bank.sha256("live") != self._bank.reference_sha256
        lora = coupling_lora.is_injected(self.transformer) and mode not in ("coupling", "joint")
        if trained or lora:
            raise UsageError(
                f"parameter mode {self._mode} is already in use, {mode} was asked for", "load the world again"
            )

    def _text_keys_values(self, text_BLD: Tensor) -> TextKeysValues:
        """The last text's are kept: old and live policy, and a group's candidates, ask for the same ones.

        Not where they are trained (mode `full`) and belong to a policy.
        """
        # Inference tensors have no version by which a change would show, and none may enter a later backward.
        if self._mode == "full" or text_BLD.is_inference() or torch.is_inference_mode_enabled():
            return self.transformer.text_keys_values(text_BLD)
        found = self._last_text
        if found is None or found[0] is not text_BLD or found[1] != text_BLD._version:
            with torch.no_grad():
                found = (text_BLD, text_BLD._version, self.transformer.text_keys_values(text_BLD))
            self._last_text = found
        return found[2]

    def _use_bank(self, bank: PolicyBank) -> None:
        self._bank = bank
        self.policies: Policies = bank

    def _all_parameters(self) -> list[nn.Parameter]:
        modules: tuple[nn.Module, ...] = (self.transformer, self._tokenizer, self._vae, self._text.model)
        return [parameter for module in modules for parameter in module.parameters()]
