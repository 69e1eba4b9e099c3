"""The latent-state video transformer (Wan2.2-TI2V layout) on diffusers' Wan building blocks.

Module names are diffusers' own for the backbone, so that a diffusers-layout folder loads as it is; `keymap`
translates to and from the training repository's names.

Shapes: B batch, C latent channels, f latent slots, H W latent grid, h w patch grid, S = h*w tokens per slot,
N = f*S, D width, K buttons, L text tokens, T text width, M state tokens per slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers.models.cache_utils import CacheMixin
from diffusers.models.normalization import FP32LayerNorm
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed, WanTimeTextImageEmbedding
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from stateplay_rl.config.world import Checkpointing
from stateplay_rl.errors import InputError
from stateplay_rl.worlds.native.blocks import LatentStateBlock, Rotary
from stateplay_rl.worlds.native.latent_state import LatentStateRollout, TransitionPredictor
from stateplay_rl.worlds.native.presets import LatentStateSizes, TransformerSizes
from stateplay_rl.worlds.native.speed import allow_graphs

MAX_POSITIONS = 1024
SELECTIVE_EVERY = 2
"""With selective checkpointing, every second block is recomputed: half the memory for half the extra forward."""


@dataclass(frozen=True)
class TextKeysValues:
    """Text keys and values of every block, each [B, heads, L, head width]; computed once per condition.

    `lengths_B`, int32, tells how many tokens are a prompt's: the rows behind are all equal.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    lengths_B: Tensor

    def select(self, index_B: Tensor) -> TextKeysValues:
        """Rows `index_B` (repeats allowed)."""
        keys, values = (tuple(x[index_B] for x in rows) for rows in (self.keys, self.values))
        return TextKeysValues(keys, values, self.lengths_B[index_B])


class LatentStateTransformer(nn.Module, CacheMixin):  # type: ignore[misc]
    """Velocity of noisy latents given first frame (slot 0), sigma, actions, text and state tokens.

    Differences from the public code: one sigma per sample; the time embedding is computed for the two
    distinct timesteps of a sample and broadcast; norms, modulation and residual sums are in float32.

    Args:
        sizes: the backbone's sizes.
        latent_state: sizes of rollout, coupling and predictor; None builds the plain action backbone.
        compute_dtype: dtype of matrix products and of timesteps; parameters may be stored in another one.
    """

    def __init__(
        self,
        sizes: TransformerSizes,
        latent_state: LatentStateSizes | None = None,
        compute_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.latent_state = latent_state
        self.compute_dtype = compute_dtype
        self.checkpointing: Checkpointing = "off"
        dim = sizes.dim
        self.patch_embedding = nn.Conv3d(sizes.in_channels, dim, sizes.patch, sizes.patch)
        self.condition_embedder = WanTimeTextImageEmbedding(dim, sizes.freq_dim, dim * 6, sizes.text_dim)
        embedders = sizes.layers if sizes.buttons else 0
        self.action_embedders = nn.ModuleList(nn.Linear(sizes.buttons, dim, bias=False) for _ in range(embedders))
        self.blocks = nn.ModuleList(LatentStateBlock(sizes, latent_state) for _ in range(sizes.layers))
        self.norm_out = FP32LayerNorm(dim, sizes.eps, elementwise_affine=False)
        self.proj_out = nn.Linear(dim, sizes.in_channels * sizes.patch[1] * sizes.patch[2])
        self.scale_shift_table = nn.Parameter(torch.randn(1, 2, dim) / dim**0.5)
        self.latent_state_rollout: LatentStateRollout | None = None
        self.transition_predictor: TransitionPredictor | None = None
        if latent_state is not None:
            self.latent_state_rollout = LatentStateRollout(dim, sizes.buttons, latent_state)
            self.transition_predictor = TransitionPredictor(sizes.buttons, latent_state)
        # Plain dictionaries, not buffers: `.to(bfloat16)` must not touch the rotary tables.
        self._rotary: dict[tuple[int, int, int, torch.device], Rotary] = {}
        self._visible: dict[tuple[int, int, torch.device], Tensor] = {}

    # -- what depends on the condition only -------------------------------------------------------------

    def text_keys_values(self, text_BLT: Tensor) -> TextKeysValues:
        """Text keys and values of every block, for reuse over denoising steps."""
        with self._autocast(text_BLT.device):
            text_BLD = self.condition_embedder.text_embedder(text_BLT.to(self.compute_dtype))
            pairs = [block.text_keys_values(text_BLD) for block in self._blocks()]
        place_L = torch.arange(1, text_BLT.shape[1] + 1, dtype=torch.int32, device=text_BLT.device)
        lengths_B = torch.where((text_BLT != 0).any(2), place_L, 0).amax(1)
        return TextKeysValues(tuple(key for key, _ in pairs), tuple(value for _, value in pairs), lengths_B)

    def state_sequence(self, first_latent_BC1HW: Tensor, action_bins_BfK: Tensor) -> tuple[Tensor, Tensor]:
        """State sequences: low [B, f, M, C_s] and tokens [B, M*f, D]; independent of later frames.

        Raises:
            InputError: the model was built without latent-state modules.
        """
        if self.latent_state_rollout is None:
            raise InputError("this transformer has no latent-state modules", "build it with latent-state sizes")
        with self._autocast(first_latent_BC1HW.device):
            patches_B1hwD = self._patch_tokens(first_latent_BC1HW)
        _, _, height, width, _ = patches_B1hwD.shape
        low, tokens = self.latent_state_rollout(patches_B1hwD.flatten(1, 3), (height, width), action_bins_BfK)
        return low, tokens

    def transition_logits(self, low_BfMS: Tensor, action_bins_BfK: Tensor) -> Tensor:
        """Predicted transition codes, logits [B, f-1, M, codes].

        Raises:
            InputError: the model was built without latent-state modules.
        """
        if self.transition_predictor is None:
            raise InputError("this transformer has no transition predictor", "build it with latent-state sizes")
        return self.transition_predictor(low_BfMS, action_bins_BfK)  # type: ignore[no-any-return]

    # -- velocity ---------------------------------------------------------------------------------------

    def forward(
        self,
        latents_BCfHW: Tensor,
        timesteps_B: Tensor,
        action_bins_BfK: Tensor | None,
        text: Tensor | TextKeysValues,
        state_tokens_BND: Tensor | None = None,
    ) -> Tensor:
        """Velocity [B, C, f, H, W] in the compute dtype; slot 0 is meaningless.

        Args:
            latents_BCfHW: noisy latents whose slot 0 is the clean first frame.
            timesteps_B: 1000 * sigma per sample, for slots 1..; slot 0 always has timestep 0.
            action_bins_BfK: pooled actions in [0, 1]; None only for a backbone without buttons.
            text: text context [B, L, T] with padding zeroed, or `text_keys_values` of it.
            state_tokens_BND: tokens of `state_sequence`; None only without latent-state modules.

        Raises:
            InputError: actions or state tokens do not fit what the model was built with.
        """
        velocity_BCfHW, _ = self.trace(latents_BCfHW, timesteps_B, action_bins_BfK, text, state_tokens_BND)
        return velocity_BCfHW

    def trace(
        self,
        latents_BCfHW: Tensor,
        timesteps_B: Tensor,
        action_bins_BfK: Tensor | None,
        text: Tensor | TextKeysValues,
        state_tokens_BND: Tensor | None = None,
        keep: Sequence[int] = (),
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """`forward`, and the hidden states [B, N, D] after the blocks named in `keep`."""
        self._check_inputs(latents_BCfHW, action_bins_BfK, state_tokens_BND)
        if not isinstance(text, TextKeysValues):
            text = self.text_keys_values(text)
        kept: dict[int, Tensor] = {}
        with self._autocast(latents_BCfHW.device):
            tokens_BfhwD = self._patch_tokens(latents_BCfHW)
            _, slots, height, width, _ = tokens_BfhwD.shape
            rotary = self._rotary_tables(slots, height, width, tokens_BfhwD.device)
            visible_NK = None
            if state_tokens_BND is not None:
                state_tokens_BND = state_tokens_BND.to(self.compute_dtype)
                visible_NK = self._visible_states(slots, height * width, tokens_BfhwD.device)
            time_BfD, modulation_Bf6D = self._time(timesteps_B, slots)
            bins_BfK = None if action_bins_BfK is None else action_bins_BfK.to(self.compute_dtype).contiguous()
            hidden_BfSD = tokens_BfhwD.flatten(2, 3)
            recomputed = self._recomputed_blocks()
            for index, block in enumerate(self.blocks):
                inputs = (
                    hidden_BfSD,
                    # One by one: together, ahead of the first block, the device would wait for their launches.
                    None if bins_BfK is None else self.action_embedders[index](bins_BfK),
                    modulation_Bf6D,
                    text.keys[index],
                    text.values[index],
                    text.lengths_B,
                    rotary,
                    state_tokens_BND,
                    visible_NK,
                )
                hidden_BfSD = block(*inputs, recomputed=index in recomputed)
                if index in keep:
                    kept[index] = hidden_BfSD.flatten(1, 2)
            velocity_BCfHW = self._head(hidden_BfSD, time_BfD, height, width)
        return velocity_BCfHW, kept

    def use_attention(self, backend: SDPBackend | None) -> None:
        """Kernel of self-attention and text attention; None leaves the choice to torch."""
        for block in self._blocks():
            block.use_attention(backend)

    def use_kernels(self, wanted: bool) -> None:
        """Triton kernels for a block's passes over memory and its text attention, while its weights are frozen."""
        for block in self._blocks():
            block.kernels = wanted

    def compile_blocks(self, **options: object) -> None:
        """Compile every block (and one transition step) in place; parameter names do not change.

        All blocks share one graph for each shape, and one more for each way that gradients flow: none, into the
        states only (the first block of a frozen trunk), into hidden state and states. So there are more graphs
        than torch's limit, above which it would quietly run uncompiled.
        """
        allow_graphs()
        for block in self._blocks():
            block.prepare_to_compile()
            block.compile(**options)
        if self.latent_state_rollout is not None:
            self.latent_state_rollout.transition.compile(**options)

    def run_uncompiled(self) -> None:
        """Undo `compile_blocks`."""
        for module in self.modules():
            module._compiled_call_impl = None

    # -- parts ------------------------------------------------------------------------------------------

    def _blocks(self) -> list[LatentStateBlock]:
        return [block for block in self.blocks if isinstance(block, LatentStateBlock)]

    def _recomputed_blocks(self) -> range:
        if self.checkpointing == "off" or not torch.is_grad_enabled():
            return range(0)
        return range(0, len(self.blocks), 1 if self.checkpointing == "full" else SELECTIVE_EVERY)

    def _autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, dtype=self.compute_dtype, enabled=self.compute_dtype is not torch.float32)

    def _patch_tokens(self, latents_BCfHW: Tensor) -> Tensor:
        """Patch embedding as one matrix product, [B, f, h, w, D]."""
        _, patch_height, patch_width = self.sizes.patch
        x = latents_BCfHW.to(self.compute_dtype)
        x = torch.unflatten(torch.unflatten(x, 4, (-1, patch_width)), 3, (-1, patch_height))
        # [B, C, f, h, ph, w, pw] -> [B, f, h, w, C*ph*pw]
        x = x.permute(0, 2, 3, 5, 1, 4, 6).flatten(4)
        return F.linear(x, self.patch_embedding.weight.flatten(1), self.patch_embedding.bias)

    def _time(self, timesteps_B: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        """Time embedding [B, f, D] and modulation [B, f, 6, D] from the two distinct timesteps."""
        embedder = self.condition_embedder
        # The public code casts timesteps first: in bfloat16 only multiples of 4 exist above 512.
        timesteps_B = timesteps_B.to(self.compute_dtype)
        timesteps_B2 = torch.stack((torch.zeros_like(timesteps_B), timesteps_B), dim=1)
        encoded = embedder.timesteps_proj(timesteps_B2.flatten()).to(self.compute_dtype)
        time_B2D = embedder.time_embedder(encoded).unflatten(0, (-1, 2))
        modulation_B26D = embedder.time_proj(embedder.act_fn(time_B2D)).unflatten(2, (6, -1))
        return _per_slot(time_B2D, slots), _per_slot(modulation_B26D, slots)

    def _head(self, hidden_BfSD: Tensor, time_BfD: Tensor, height: int, width: int) -> Tensor:
        shift, scale = (self.scale_shift_table.float() + time_BfD.float().unsqueeze(2)).unsqueeze(3).unbind(2)
        x = (self.norm_out(hidden_BfSD.float()) * (1 + scale) + shift).type_as(hidden_BfSD)
        _, patch_height, patch_width = self.sizes.patch
        x = self.proj_out(x).unflatten(3, (patch_height, patch_width, -1)).unflatten(2, (height, width))
        return x.permute(0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)  # type: ignore[no-any-return]

    def _rotary_tables(self, slots: int, height: int, width: int, device: torch.device) -> Rotary:
        """Float32 cosines and signed sines [N, head width] as `head_rows` wants them, once per shape and device."""
        key = (slots, height, width, device)
        if key not in self._rotary:
            if max(slots, height, width) > MAX_POSITIONS:
                raise InputError(f"latent grid {key[:3]} exceeds {MAX_POSITIONS} rotary positions")
            # Tables made under inference mode could not be saved for a later backward.
            with torch.inference_mode(False), torch.device("cpu"):
                rope = WanRotaryPosEmbed(self.sizes.head_dim, (1, 1, 1), MAX_POSITIONS)
                cos, sin = rope(torch.empty(1, 1, slots, height, width, device="meta"))
                cos, sin = cos[0, :, 0, 0::2], sin[0, :, 0, 1::2]
                pairs = (torch.stack((cos, cos), -1), torch.stack((-sin, sin), -1))
                self._rotary[key] = (pairs[0].flatten(1).to(device), pairs[1].flatten(1).to(device))
        return self._rotary[key]

    def _visible_states(self, slots: int, tokens_per_slot: int, device: torch.device) -> Tensor:
        """True where video slot i may see state slot j <= i, bool [f*S, M*f]."""
        if self.latent_state is None:
            raise InputError("state tokens given to a transformer without latent-state modules")
        key = (slots, tokens_per_slot, device)
        if key not in self._visible:
            with torch.inference_mode(False):
                index = torch.arange(slots, device=device)
                video = index.repeat_interleave(tokens_per_slot).unsqueeze(1)
                self._visible[key] = index.repeat_interleave(self.latent_state.state_tokens) <= video
        return self._visible[key]

    def _check_inputs(self, latents: Tensor, bins: Tensor | None, state_tokens: Tensor | None) -> None:
        if (bins is None) != (self.sizes.buttons == 0):
            raise InputError(f"action bins do not fit a transformer with {self.sizes.buttons} buttons")
        if bins is not None and bins.shape[1] != latents.shape[2]:
            raise InputError(f"{bins.shape[1]} action bins for {latents.shape[2]} latent slots")
        if (state_tokens is None) != (self.latent_state is None):
            raise InputError(
                "state tokens and latent-state modules must come together", "pass `state_sequence`'s tokens"
            )
        if latents.shape[3] % self.sizes.patch[1] or latents.shape[4] % self.sizes.patch[2]:
            raise InputError(f"latent grid {tuple(latents.shape[3:])} is not a multiple of {self.sizes.patch[1:]}")


def _per_slot(x_B2: Tensor, slots: int) -> Tensor:
    """[B, 2, ...] (slot 0, the others) -> [B, f, ...]."""
    return torch.cat((x_B2[:, :1], x_B2[:, 1:].expand(-1, slots - 1, *x_B2.shape[2:])), dim=1)
