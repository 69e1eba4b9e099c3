"""`CheckoutWorld`: the user's StatePlay checkout behind the `World` protocol.

What is called: `model_fn_stateplay_latent(dit=, latents=, timestep=, context=, keyboard_action=, ...)`, one
sample at a time, because the public code takes one timestep for a whole batch.

Shapes: B batch, C latent channels, f latent slots, H W latent grid, T frames, h w picture size, K buttons,
L text tokens, D text width, M state tokens per slot, S state width, N video tokens, Z codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stateplay_rl.errors import InputError, UsageError
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
)
from stateplay_rl.worlds.native import coupling_lora
from stateplay_rl.worlds.native.modes import trained_groups
from stateplay_rl.worlds.native.policy_weights import LORA_SEED, lay_over, merged_weights
from stateplay_rl.worlds.native.vae_presets import TEMPORAL_FACTOR
from stateplay_rl.worlds.native.world import TIMESTEPS, WorldHashes
from stateplay_rl.worlds.policy_bank import PolicyBank
from stateplay_rl.worlds.preparation import bin_actions
from stateplay_rl.worlds.stateplay.masters import cast_on_use
from stateplay_rl.worlds.stateplay.networks import CheckoutNetworks, accepted
from stateplay_rl.worlds.stateplay.pictures import decode_frames, encode_frames
from stateplay_rl.worlds.stateplay.states import CheckoutResult, CheckoutStates
from stateplay_rl.worlds.stateplay.text import CheckoutText

RESULTS = ("pred_video", "G_seq_low", "G_seq", "transition_logits")
"""What the model function's dictionary must hold."""

REQUIRED_ARGUMENTS = ("latents", "timestep", "context", "keyboard_action")


class CheckoutWorld:
    """A world model that runs the checkout's own code; see `World` for the meaning of each method.

    Args:
        spec: sizes.
        networks: built and filled; frozen and in eval mode.
        hashes: of weight files, description and code.
        facts: what is on record about the checkout, for manifests.
        device, compute_dtype: where and in what the networks are.
        gradient_checkpointing: passed on to the model function.
        model_fn_kwargs: further arguments of every call.
    """

    def __init__(
        self,
        spec: WorldSpec,
        networks: CheckoutNetworks,
        hashes: WorldHashes,
        facts: Mapping[str, Any],
        *,
        device: torch.device,
        compute_dtype: torch.dtype,
        gradient_checkpointing: bool = False,
        model_fn_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.spec = spec
        self.sha256 = hashes.world_sha256
        self.encoder_sha256 = hashes.encoder_sha256
        self.facts: Mapping[str, Any] = facts
        self.own_sampler: OwnSampler | None = None
        self.device = device
        self.compute_dtype = compute_dtype
        self.dit = networks.dit.eval().requires_grad_(False)
        self._networks = networks
        self._text = CheckoutText(networks.text_encoder, networks.text_tokenizer)
        self._checkpointing = gradient_checkpointing
        self._model_fn_kwargs = dict(model_fn_kwargs or {})
        self._mode: ParameterMode | None = None
        self._use_bank(PolicyBank({}))

    # -- conditions and clips ------------------------------------------------------------------------

    def encode_conditions(self, inputs: Sequence[ConditionInputs]) -> ConditionBatch:
        """First-frame latents, action bins and text of conditions with equal f.

        Raises:
            InputError: unequal f, or a first frame or action table of another size (naming the condition).
        """
        check_inputs(self.spec, inputs)
        latents = torch.stack([self.encode_video(item.first_frame_hwc[None]) for item in inputs])
        bins = np.stack([bin_actions(item.held_actions_RK, item.latent_frames) for item in inputs])
        return ConditionBatch(
            tuple(item.condition_id for item in inputs),
            latents.to(self.device),
            torch.from_numpy(bins).to(self.device),
            self._text.encode([item.prompt for item in inputs]).to(self.device),
        )

    def encode_video(self, frames_ThwC: np.ndarray) -> Tensor:
        """uint8 [T, h, w, 3], T = 1 (mod 4) -> normalised latents [C, f, H, W] float32, by the checkout's VAE."""
        if frames_ThwC.shape[0] % TEMPORAL_FACTOR != 1:
            raise InputError(f"VAE: {frames_ThwC.shape[0]} frames; the count must be 1 (mod {TEMPORAL_FACTOR})")
        latents_CfHW = encode_frames(self._networks.vae, frames_ThwC, self.compute_dtype, self.device)
        expected = (self.spec.latent_channels, self.spec.latent_frames(len(frames_ThwC)))
        if tuple(latents_CfHW.shape[:2]) != expected:
            raise InputError(
                f"the checkout's VAE gave latents {list(latents_CfHW.shape)} for {len(frames_ThwC)} frames",
                f"expected {expected[0]} channels and {expected[1]} slots: check the VAE's class and file",
            )
        return latents_CfHW

    def decode(self, latents_BCfHW: Tensor) -> np.ndarray:
        """Normalised latents -> uint8 [B, T, h, w, 3]; one video at a time, so none depends on its batch."""
        parts = [decode_frames(self._networks.vae, latents[None], self.compute_dtype, self.device)
                 for latents in latents_BCfHW]  # fmt: skip
        return np.concatenate(parts)

    # -- the networks --------------------------------------------------------------------------------

    def states(self, conditions: ConditionBatch) -> CheckoutStates:
        """The state sequence: a promise that the next `velocity` of these conditions keeps (`states.py`).

        Raises:
            RuntimeError: gradients are enabled outside a live window.
        """
        self._bank.check_forward()
        policy = self._bank.current

        def compute() -> CheckoutResult:
            if self._bank.current != policy:
                raise RuntimeError(f"states of policy {policy} looked at under policy {self._bank.current}")
            shape = (*conditions.first_latent_BC1HW.shape[:2], conditions.latent_frames)
            noise = torch.zeros(*shape, *conditions.first_latent_BC1HW.shape[3:], device=self.device)
            return self._run(noise, torch.ones(len(conditions), device=self.device), conditions)[1]

        return CheckoutStates(compute, len(conditions))

    def first_block_cache(self, threshold: float) -> AbstractContextManager[None]:
        """Refused: the checkout's blocks are its own.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "the checkout's model has no first-block cache",
            "use --sampler SOLVER or SOLVER+taylor, or the native backend",
        )

    def velocity(
        self,
        latents_BCfHW: Tensor,
        sigma_B: Tensor,
        conditions: ConditionBatch,
        states: StateSequence | None = None,
    ) -> WorldOutput:
        """Velocity float32 [B, C, f, H, W] under the current policy; slot 0 of the latents is overwritten.

        Given states save nothing here: the checkout computes its own in every forward. They receive this one's.

        Raises:
            RuntimeError: gradients are enabled outside a live window.
            InputError: the model function returns something else than it should.
        """
        self._bank.check_forward()
        velocity_BCfHW, result = self._run(latents_BCfHW, sigma_B, conditions)
        held = states if isinstance(states, CheckoutStates) else self.states(conditions)
        held.offer(result)
        return WorldOutput(velocity_BCfHW, held)

    def transition_logits(self, states: StateSequence, conditions: ConditionBatch) -> Tensor:
        """Predicted codes [B, f-1, M, codes], as the checkout's forward returned them."""
        self._bank.check_forward()
        if not isinstance(states, CheckoutStates):
            raise InputError("the states are another world's", "use states() of this one")
        return states.logits

    def transition_codes(self, latents_BCfHW: Tensor) -> Tensor:
        """Codes of the frozen tokenizer on clean latents: int64 [B, f-1, M].

        Raises:
            InputError: the checkout's tokenizer is not known, or returns no codes.
        """
        tokenizer = self._networks.transition_tokenizer
        if tokenizer is None:
            raise InputError(
                "this checkout's stage-1 tokenizer is not known, so there are no transition codes",
                "name its class (checkout_options: {symbols: {transition_tokenizer: module:Class}}), or train without "
                "the transition anchor: --set anchors.transition_real=0",
            )
        with torch.no_grad():
            result = tokenizer(latents_BCfHW.to(self.device, torch.float32))
        codes = result.get("z_indices") if isinstance(result, Mapping) else result
        if not isinstance(codes, Tensor) or codes.is_floating_point() or codes.dim() != 3:
            raise InputError("the checkout's tokenizer returned no `z_indices` [B, f-1, M]", "check its class")
        return codes.long()

    # -- policies ------------------------------------------------------------------------------------

    def set_mode(self, mode: ParameterMode) -> tuple[ParameterGroup, ...]:
        """Choose the trained parameters, freeze the rest, and build the policy bank for them.

        Raises:
            UsageError: a mode is already set.
            CheckError: the model lacks what the mode trains.
        """
        if self._mode is not None:
            raise UsageError(f"parameter mode {self._mode} is already set", "load the world again")
        if mode in ("coupling", "joint"):
            coupling_lora.inject(self.dit, LORA_SEED)
            self.dit.to(self.device)
        self.dit.eval().requires_grad_(False)
        groups = trained_groups(self.dit, mode)
        trained = {n: p for group in groups for n, p in zip(group.names, group.parameters, strict=True)}
        for parameter in trained.values():
            # Masters in float32, whatever the file holds: small updates vanish in bfloat16.
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
        cast_on_use(self.dit, self.compute_dtype)
        self._use_bank(PolicyBank(trained, [p for p in self._all_parameters() if not p.requires_grad]))
        self._mode = mode
        return groups

    def export_policy(self, policy: PolicyName) -> dict[str, Tensor]:
        """Trained weights under the checkout's own key names, float32, on the CPU; LoRA merged in.

        Raises:
            UsageError: no mode is set, so nothing is trained.
        """
        if self._mode is None:
            raise UsageError("no parameter mode is set, so there is no policy to export", "call set_mode first")
        with self._bank.use(policy), torch.no_grad():
            return merged_weights(self.dit, self._bank.names)

    def apply_policy(self, weights: Mapping[str, Tensor], source: str) -> None:
        """Lay an exported policy over the base weights; before `set_mode`, whose reference it becomes.

        Raises:
            UsageError: a mode is already set.
            InputError: a key is unknown or of another shape.
        """
        if self._mode is not None:
            raise UsageError("a policy must be applied before the parameter mode is set", "load the world again")
        lay_over(self.dit, weights, source)
        cast_on_use(self.dit, self.compute_dtype)

    # -- helpers -------------------------------------------------------------------------------------

    def _run(self, latents_BCfHW: Tensor, sigma_B: Tensor, conditions: ConditionBatch) -> tuple[Tensor, CheckoutResult]:
        """Velocity and states of a batch, sample by sample."""
        rows = [self._run_one(latents_BCfHW[b], sigma_B[b], conditions.select([b])) for b in range(len(conditions))]
        velocity, low, tokens, logits = (torch.cat([row[name] for row in rows]) for name in RESULTS)
        return velocity.float(), CheckoutResult(low, tokens, logits)

    def _run_one(self, latents_CfHW: Tensor, sigma: Tensor, condition: ConditionBatch) -> dict[str, Tensor]:
        dtype = self.compute_dtype
        first_1C1HW = condition.first_latent_BC1HW.to(dtype)
        offered = {
            "dit": self.dit,
            "latents": torch.cat([first_1C1HW, latents_CfHW[None, :, 1:].to(dtype)], dim=2),
            # The public code casts the timestep to the compute dtype before its sinusoidal embedding.
            "timestep": (sigma.float() * TIMESTEPS).reshape(1).to(self.device, dtype),
            "context": condition.text_BLD.to(dtype),
            # Already one row per slot: the model's own adaptive pooling leaves such a table as it is.
            "keyboard_action": condition.action_bins_BfK.to(dtype),
            "first_frame_latents": first_1C1HW,
            "fuse_vae_embedding_in_latents": True,
            "use_gradient_checkpointing": self._checkpointing and torch.is_grad_enabled(),
            "use_gradient_checkpointing_offload": False,
            **self._model_fn_kwargs,
        }
        model_fn: Callable[..., Any] = self._networks.model_fn
        result = model_fn(**accepted(model_fn, offered, (*REQUIRED_ARGUMENTS, *self._model_fn_kwargs)))
        return _checked(result, offered["latents"])

    def _use_bank(self, bank: PolicyBank) -> None:
        self._bank = bank
        self.policies: Policies = bank

    def _all_parameters(self) -> list[nn.Parameter]:
        modules = (self.dit, self._networks.vae, self._networks.text_encoder, self._networks.transition_tokenizer)
        return [p for module in modules if isinstance(module, nn.Module) for p in module.parameters()]


def _checked(result: object, latents_1CfHW: Tensor) -> dict[str, Tensor]:
    """The model function's dictionary, when it holds what it must."""
    if not isinstance(result, Mapping):
        raise InputError(
            f"the model function returned a {type(result).__name__}, not a dictionary of {', '.join(RESULTS)}",
            "an explicit-state model returns a pair: this pipeline never takes it",
        )
    lacking = [name for name in RESULTS if not isinstance(result.get(name), Tensor)]
    if lacking:
        raise InputError(f"the model function's result lacks {', '.join(lacking)}", "check checkout_options")
    slots = latents_1CfHW.shape[2]
    shapes = {name: tuple(result[name].shape) for name in RESULTS}
    fits = (
        shapes["pred_video"] == tuple(latents_1CfHW.shape)
        and shapes["G_seq_low"][:2] == (1, slots)
        and len(shapes["G_seq_low"]) == 4
        and shapes["G_seq"][:2] == (1, slots * shapes["G_seq_low"][2])
        and shapes["transition_logits"][:2] == (1, slots - 1)
    )
    if not fits:
        raise InputError(
            f"the model function's shapes do not fit latents {list(latents_1CfHW.shape)}: {shapes}",
            "expected pred_video as the latents, G_seq_low [1, f, M, S], G_seq [1, M*f, C], transition_logits "
            "[1, f-1, M, codes]",
        )
    return {name: result[name] for name in RESULTS}
