"""The implicit latent state: a sequence of state tokens that depends on first frame and actions only.

Shapes: B batch, f latent slots, M state tokens per slot, S = C_s state width, K buttons, P first-frame
tokens, C backbone width.
"""

from __future__ import annotations

import torch
from diffusers.models.embeddings import Timesteps
from torch import Tensor, nn

from stateplay_rl.worlds.native.blocks import MultiHeadAttention
from stateplay_rl.worlds.native.presets import LatentStateSizes


def sincos_grid(height: int, width: int, dim: int, device: torch.device) -> Tensor:
    """Fixed 2-D sine/cosine positions, float32 [height*width, dim]; half of `dim` per axis."""
    encode = Timesteps(dim // 2, flip_sin_to_cos=True, downscale_freq_shift=0)
    rows = encode(torch.arange(height, device=device)).unsqueeze(1).expand(height, width, -1)
    columns = encode(torch.arange(width, device=device)).unsqueeze(0).expand(height, width, -1)
    return torch.cat((rows, columns), dim=-1).flatten(0, 1)


def mlp(dim: int, inner: int) -> nn.Sequential:
    """Linear, GELU, Linear with one inner width."""
    return nn.Sequential(nn.Linear(dim, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, dim))


def _before_last(action_bins_BfK: Tensor, dtype: torch.dtype) -> Tensor:
    # Contiguous, as every input of a Linear here: for others, torch picks the kernel by `requires_grad`, and
    # the same weights would give other bits when frozen than when trained.
    return action_bins_BfK[:, :-1].to(dtype).contiguous()


class StateInitializer(nn.Module):
    """First-frame patch tokens, projected, with fixed positions, read by M learnable queries.

    Patch tokens carry no position of their own; the fixed encoding tells the queries where a bar or a body is
    and adds no parameter.
    """

    def __init__(self, dim: int, sizes: LatentStateSizes) -> None:
        super().__init__()
        width = sizes.state_dim
        self.project = nn.Linear(dim, width)
        self.norm_tokens = nn.LayerNorm(width)
        self.queries = nn.Parameter(torch.zeros(sizes.state_tokens, width))
        self.attention = MultiHeadAttention(width, width, width, sizes.state_heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = mlp(width, sizes.mlp_ratio * width)
        self.norm = nn.LayerNorm(width)

    def forward(self, patches_BPC: Tensor, height: int, width: int) -> Tensor:
        """G_0, [B, M, S], from the `height` x `width` grid of first-frame tokens."""
        tokens_BPS = self.norm_tokens(self.project(patches_BPC))
        positions_PS = sincos_grid(height, width, tokens_BPS.shape[-1], tokens_BPS.device)
        tokens_BPS = tokens_BPS + positions_PS.type_as(tokens_BPS)
        queries_BMS = self.queries.expand(len(tokens_BPS), -1, -1).contiguous()
        state_BMS = queries_BMS + self.attention(queries_BMS, tokens_BPS)
        state_BMS = state_BMS + self.mlp(self.norm_mlp(state_BMS))
        return self.norm(state_BMS)  # type: ignore[no-any-return]


class TransitionLayer(nn.Module):
    """Pre-norm self-attention over the M state tokens, then an MLP."""

    def __init__(self, sizes: LatentStateSizes) -> None:
        super().__init__()
        width = sizes.state_dim
        self.norm1 = nn.LayerNorm(width)
        self.attention = MultiHeadAttention(width, width, width, sizes.state_heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width, sizes.mlp_ratio * width)

    def forward(self, x_BMS: Tensor) -> Tensor:
        """[B, M, S] -> [B, M, S]."""
        normed_BMS = self.norm1(x_BMS)
        x_BMS = x_BMS + self.attention(normed_BMS, normed_BMS)
        return x_BMS + self.mlp(self.norm2(x_BMS))  # type: ignore[no-any-return]


class StateTransition(nn.Module):
    """Module B: G_{i+1} = norm(G_i + delta(layers(G_i + action + step))).

    The step enters through a sinusoidal encoding and a Linear, not through a table, so that clips longer than
    the training length have a defined step embedding (the same smooth function, read further out).
    """

    def __init__(self, buttons: int, sizes: LatentStateSizes) -> None:
        super().__init__()
        width = sizes.state_dim
        self.action_embedding = nn.Linear(buttons, width, bias=False)
        self.step_encoding = Timesteps(width, flip_sin_to_cos=True, downscale_freq_shift=0)
        self.step_embedding = nn.Linear(width, width)
        self.layers = nn.ModuleList(TransitionLayer(sizes) for _ in range(sizes.transition_layers))
        self.delta = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def inputs(self, action_bins_BfK: Tensor) -> Tensor:
        """What every step adds to the state, [B, f-1, S]: the first f-1 action bins and their steps."""
        weight = self.action_embedding.weight
        actions_BfS = self.action_embedding(_before_last(action_bins_BfK, weight.dtype))
        steps_f = torch.arange(actions_BfS.shape[1], device=weight.device)
        return actions_BfS + self.step_embedding(self.step_encoding(steps_f).to(weight.dtype))  # type: ignore[no-any-return]

    def forward(self, state_BMS: Tensor, input_BS: Tensor) -> Tensor:
        """One step, [B, M, S] -> [B, M, S]."""
        x_BMS = state_BMS + input_BS.unsqueeze(1)
        for layer in self.layers:
            x_BMS = layer(x_BMS)
        return self.norm(state_BMS + self.delta(x_BMS))  # type: ignore[no-any-return]


class LatentStateRollout(nn.Module):
    """Initializer, recursion over the first f-1 action bins, projection to the backbone's width.

    Runs in the dtype of its own parameters, outside autocast: the recursion is short of work and long in
    steps, so rounding would add up for nothing.
    """

    def __init__(self, dim: int, buttons: int, sizes: LatentStateSizes) -> None:
        super().__init__()
        self.initializer = StateInitializer(dim, sizes)
        self.transition = StateTransition(buttons, sizes)
        self.output_projection = nn.Linear(sizes.state_dim, dim)

    def forward(self, patches_BPC: Tensor, grid: tuple[int, int], action_bins_BfK: Tensor) -> tuple[Tensor, Tensor]:
        """State sequences of a batch.

        Args:
            patches_BPC: the backbone's patch tokens of the first frame.
            grid: (height, width) of these tokens, height * width = P.
            action_bins_BfK: pooled action bins; the last one is not used.

        Returns:
            low [B, f, M, S] before, and tokens [B, M*f, C] after the output projection, slot by slot.
        """
        with torch.autocast(patches_BPC.device.type, enabled=False):
            state_BMS = self.initializer(patches_BPC.to(self.output_projection.weight.dtype), *grid)
            states = [state_BMS]
            # Step by step contiguous: strides that depend on f would compile a step again for every length.
            inputs_fBS = self.transition.inputs(action_bins_BfK).transpose(0, 1)
            for input_BS in inputs_fBS.clone(memory_format=torch.contiguous_format):
                state_BMS = self.transition(state_BMS, input_BS)
                states.append(state_BMS)
            low_BfMS = torch.stack(states, dim=1)
            return low_BfMS, self.output_projection(low_BfMS).flatten(1, 2)


class TransitionPredictor(nn.Module):
    """Logits over transition codes from the state *before* a step and that step's action bin.

    Its action embedding is its own: sharing module B's would give module B a gradient at step 0.
    """

    def __init__(self, buttons: int, sizes: LatentStateSizes) -> None:
        super().__init__()
        self.action_embedding = nn.Linear(buttons, sizes.state_dim, bias=False)
        self.norm = nn.LayerNorm(sizes.state_dim)
        self.hidden = nn.Linear(sizes.state_dim, sizes.state_dim)
        self.activation = nn.GELU(approximate="tanh")
        self.head = nn.Linear(sizes.state_dim, sizes.codes)

    def forward(self, low_BfMS: Tensor, action_bins_BfK: Tensor) -> Tensor:
        """Logits [B, f-1, M, codes] from low[:, :-1] + action_embedding(bins[:, :-1])."""
        weight = self.head.weight
        with torch.autocast(low_BfMS.device.type, enabled=False):
            actions_BfS = self.action_embedding(_before_last(action_bins_BfK, weight.dtype))
            x_BfMS = low_BfMS[:, :-1].to(weight.dtype) + actions_BfS.unsqueeze(2)
            return self.head(self.activation(self.hidden(self.norm(x_BfMS))))  # type: ignore[no-any-return]
