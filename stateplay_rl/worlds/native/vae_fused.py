"""The Wan VAE's encoder and decoder channels-last, with fused norms: the library's modules, another order of work.

Four things make the library's own loop slow on a GPU, none of them the convolutions' arithmetic: channels-first
tensors are transposed around every convolution; norm, activation, bias and residual sum are a dozen passes over
memory; every convolution copies its input to pad it; nearest upsampling computes a 3x3 convolution of which five of
nine products are sums that could have been taken of the weights. Here everything is `[B, T, h, w, C]` in memory; a
norm writes its activation straight into the next convolution's padded input; and an upsampled convolution is four
2x2 convolutions of the small picture (exact up to the rounding of the summed weights).

Sums inside a fused pass are in float32 and rounded once, where the library rounds after each operation.

Shapes: B batch, T frames of a call, h w grid, C channels, R = rows (B*T*h*w).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AvgDown3D, WanCausalConv3d
from torch import Tensor, nn
from torch.nn import functional as F

from stateplay_rl.worlds.native.speed import allow_graphs

History = dict[nn.Module, Tensor]
"""Causal convolution -> the last frames of its input in the call before; belongs to one video."""

NORM_FLOOR = 1e-12
CHANNEL_MULTIPLE = 8
"""Tensor cores want channel counts that are multiples of this; others are padded with zeros."""


# -- passes over memory, each one kernel when compiled ----------------------------------------------------------


def activate(x_RC: Tensor, bias_C: Tensor | None, gamma_C: Tensor, out_RC: Tensor) -> None:
    """out <- silu(rms_norm(x + bias) gamma), sums in float32."""
    x = x_RC.float()
    if bias_C is not None:
        x = x + bias_C.float()
    length = x.square().sum(-1, keepdim=True).sqrt().clamp_min(NORM_FLOOR)
    out_RC.copy_(F.silu(x / length * (x.shape[-1] ** 0.5) * gamma_C.float()))


def join(x_RC: Tensor, bias_C: Tensor, shortcut_RC: Tensor) -> None:
    """x <- x + bias + shortcut, in place, summed in float32."""
    x_RC.copy_(x_RC.float() + bias_C.float() + shortcut_RC.float())


def place(out_BThwC: Tensor, x_BThwC: Tensor, bias_C: Tensor, shortcut_BThwC: Tensor) -> None:
    """A strided view of the output <- x + bias + shortcut, summed in float32."""
    out_BThwC.copy_(x_BThwC.float() + bias_C.float() + shortcut_BThwC.float())


@lru_cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    allow_graphs()
    return torch.compile(function)


def _run(function: Callable[..., None], x: Tensor, *rest: Tensor | None) -> None:
    """One pass: compiled on a GPU, as it stands elsewhere. A graph for each channel count; rows may vary."""
    if x.device.type != "cuda":
        function(x, *rest)
        return
    for value in (x, *rest):
        if value is not None:
            torch._dynamo.mark_static(value, value.dim() - 1)
            if value.dim() == 2:
                torch._dynamo.maybe_mark_dynamic(value, 0)
    _compiled(function)(x, *rest)


# -- convolutions ---------------------------------------------------------------------------------------------


def convolve(conv: nn.Conv3d, x_BThwC: Tensor) -> Tensor:
    """A convolution without its bias; frames must be padded already, the picture's edge is padded here."""
    _, rows, columns = (size // 2 for size in conv.kernel_size)
    weight, channels = conv.weight, conv.out_channels
    missing = -conv.in_channels % CHANNEL_MULTIPLE
    if missing or channels % CHANNEL_MULTIPLE:
        x_BThwC = F.pad(x_BThwC, (0, missing))
        weight = F.pad(weight, (0, 0, 0, 0, 0, 0, 0, missing, 0, -channels % CHANNEL_MULTIPLE))
        weight = weight.contiguous(memory_format=torch.channels_last_3d)
    x = F.conv3d(x_BThwC.permute(0, 4, 1, 2, 3), weight, None, conv.stride, (0, rows, columns))
    return x.permute(0, 2, 3, 4, 1)[..., :channels].contiguous()


def causal(conv: WanCausalConv3d, x_BThwC: Tensor, history: History) -> Tensor:
    """A causal convolution with its bias, after the frames that the call before left."""
    padded = _room(conv, x_BThwC, x_BThwC.shape[-1], history)
    padded[:, -x_BThwC.shape[1] :] = x_BThwC
    _remember(conv, padded, history)
    return convolve(conv, padded) + conv.bias  # type: ignore[no-any-return]


def normed(norm: Any, conv: WanCausalConv3d, x_BThwC: Tensor, bias_C: Tensor | None, history: History) -> Tensor:
    """conv(silu(norm(x + bias))) without the convolution's own bias."""
    padded = _room(conv, x_BThwC, x_BThwC.shape[-1], history)
    frames, gamma_C = x_BThwC.shape[1], norm.gamma.flatten()
    for x, out in zip(x_BThwC, padded, strict=True):
        _run(activate, x.flatten(0, 2), bias_C, gamma_C, out[-frames:].flatten(0, 2))
    _remember(conv, padded, history)
    return convolve(conv, padded)


def _room(conv: WanCausalConv3d, x_BThwC: Tensor, channels: int, history: History) -> Tensor:
    """An input of `conv` whose first frames are those of the call before (zeros in the first one)."""
    batch, frames, *grid, _ = x_BThwC.shape
    before = conv.kernel_size[0] - 1
    padded = x_BThwC.new_empty((batch, before + frames, *grid, channels))
    if conv in history:
        padded[:, :before] = history[conv]
    else:
        padded[:, :before] = 0
    return padded


def _remember(conv: WanCausalConv3d, padded: Tensor, history: History) -> None:
    # A copy: a view would hold the whole input.
    history[conv] = padded[:, padded.shape[1] - conv.kernel_size[0] + 1 :].clone()


# -- blocks ---------------------------------------------------------------------------------------------------


def residual(block: Any, x_BThwC: Tensor, history: History) -> Tensor:
    """`WanResidualBlock`."""
    shortcut = x_BThwC
    if isinstance(block.conv_shortcut, WanCausalConv3d):
        weight = block.conv_shortcut.weight.flatten(1)
        shortcut = F.linear(x_BThwC, weight, block.conv_shortcut.bias)
    hidden = normed(block.norm1, block.conv1, x_BThwC, None, history)
    hidden = normed(block.norm2, block.conv2, hidden, block.conv1.bias, history)
    _run(join, hidden.flatten(0, 3), block.conv2.bias, shortcut.flatten(0, 3))
    return hidden


def middle(block: Any, x_BThwC: Tensor, history: History) -> Tensor:
    """`WanMidBlock`; its attention is the library's, on the smallest grid."""
    x_BThwC = residual(block.resnets[0], x_BThwC, history)
    for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
        x_BThwC = attention(x_BThwC.permute(0, 4, 1, 2, 3)).permute(0, 2, 3, 4, 1).contiguous()
        x_BThwC = residual(resnet, x_BThwC, history)
    return x_BThwC


def up(block: Any, x_BThwC: Tensor, history: History, first: bool) -> Tensor:
    """`WanResidualUpBlock`: residual blocks, then twice the size and, for some, twice the frames.

    The first slot stays one frame; its upsampled twin is what the library cuts off.
    """
    source = x_BThwC
    for resnet in block.resnets:
        x_BThwC = residual(resnet, x_BThwC, history)
    if block.upsampler is None:
        return x_BThwC
    time = 2 if block.upsampler.mode == "upsample3d" else 1
    if time == 2 and not first:
        conv = block.upsampler.time_conv
        doubled = torch.unflatten(causal(conv, x_BThwC, history), -1, (2, -1))
        x_BThwC = doubled.permute(0, 1, 4, 2, 3, 5).flatten(1, 2)
    return _enlarged(block.upsampler.resample[1], x_BThwC, source, time)


def _enlarged(conv: nn.Conv2d, x_BThwC: Tensor, source_BThwC: Tensor, time: int) -> Tensor:
    """Nearest upsampling by 2, `conv` (3x3), plus the block's input repeated to that size.

    Output pixel 2i + a of a line reads pixels i - 1 + a and i + a only: a 2-tap kernel for each a.
    """
    batch, frames, height, width, _ = x_BThwC.shape
    channels = conv.out_channels
    out = x_BThwC.new_empty((batch, frames, height, 2, width, 2, channels))
    pictures = x_BThwC.flatten(0, 1).permute(0, 3, 1, 2)
    turns = range(time) if frames == time * source_BThwC.shape[1] else range(time - 1, time)
    kernels = _two_taps(conv.weight.float())
    for a in range(2):
        for b in range(2):
            kernel = kernels[a][b].to(conv.weight.dtype).contiguous(memory_format=torch.channels_last)
            whole = F.conv2d(pictures, kernel, None, padding=1).permute(0, 2, 3, 1)
            phase = torch.unflatten(whole[:, a : a + height, b : b + width], 0, (batch, frames))
            for turn in turns:
                shortcut = _repeated(source_BThwC, channels, time, (turn, a, b))
                frames_of = slice(turn - turns.start, None, len(turns))
                _run(place, out[:, frames_of, :, a, :, b], phase[:, frames_of], conv.bias, shortcut)
    return out.flatten(4, 5).flatten(2, 3)


def _two_taps(weight_OI33: Tensor) -> list[list[Tensor]]:
    """Kernels [O, I, 2, 2] of the four output phases, [row phase][column phase]."""

    def halves(weight: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        before, here, after = weight.unbind(dim)
        return torch.stack((before, here + after), dim), torch.stack((before + here, after), dim)

    return [list(halves(rows, 3)) for rows in halves(weight_OI33, 2)]


def _repeated(source_BThwC: Tensor, channels: int, time: int, phase: tuple[int, int, int]) -> Tensor:
    """`DupUp3D` at one (frame, row, column) phase of the output: a view of every n-th channel."""
    every = source_BThwC.shape[-1] // channels
    repeats = 4 * time // every
    number = (phase[0] * 2 + phase[1]) * 2 + phase[2]
    return source_BThwC[..., number // repeats :: every]


def down(block: Any, x_BThwC: Tensor, history: History) -> Tensor:
    """`WanResidualDownBlock`: residual blocks, then half the size and, for some, half the frames."""
    source = x_BThwC
    for resnet in block.resnets:
        x_BThwC = residual(resnet, x_BThwC, history)
    if block.downsampler is not None:
        x_BThwC = _reduced(block.downsampler, x_BThwC, history)
    return x_BThwC + _pooled(source, block.avg_shortcut)


def _pooled(x_BThwC: Tensor, shortcut: AvgDown3D) -> Tensor:
    """`AvgDown3D`: means over (channel, frame, row, column) neighbours; zero frames in front fill the first group.

    A group always holds whole 2x2 squares (or a single pixel), so rows and columns go first.
    """
    time, space = shortcut.factor_t, shortcut.factor_s
    x = F.pad(x_BThwC, (0, 0, 0, 0, 0, 0, -x_BThwC.shape[1] % time, 0))
    if space > 1:
        x = torch.unflatten(torch.unflatten(x, 3, (-1, space)), 2, (-1, space)).mean((3, 5))
    if shortcut.factor == 1 and shortcut.group_size == 1:
        return x
    x = torch.unflatten(x, 1, (-1, time)).permute(0, 1, 3, 4, 5, 2).flatten(4)
    return torch.unflatten(x, -1, (shortcut.out_channels, -1)).mean(-1)


def _reduced(resample: Any, x_BThwC: Tensor, history: History) -> Tensor:
    conv = resample.resample[1]
    batch = x_BThwC.shape[0]
    pictures = F.pad(x_BThwC.flatten(0, 1), (0, 0, 0, 1, 0, 1)).permute(0, 3, 1, 2)
    weight = conv.weight.contiguous(memory_format=torch.channels_last)
    pictures = F.conv2d(pictures, weight, conv.bias, conv.stride).permute(0, 2, 3, 1)
    x_BThwC = torch.unflatten(pictures, 0, (batch, -1)).contiguous()
    if resample.mode != "downsample3d":
        return x_BThwC
    conv = resample.time_conv
    last = x_BThwC[:, -1:].clone()
    if conv in history:
        x_BThwC = convolve(conv, torch.cat((history[conv], x_BThwC), 1)) + conv.bias
    history[conv] = last
    return x_BThwC


# -- networks -------------------------------------------------------------------------------------------------


def decode(decoder: Any, latents_BCThw: Tensor, history: History, *, first: bool) -> Tensor:
    """`WanDecoder3d` on some slots of a video: [B, C, T, h, w] -> [B, C', T', h', w'] (channels-last in memory)."""
    x = causal(decoder.conv_in, latents_BCThw.permute(0, 2, 3, 4, 1).contiguous(), history)
    x = middle(decoder.mid_block, x, history)
    for block in decoder.up_blocks:
        x = up(block, x, history, first)
    x = normed(decoder.norm_out, decoder.conv_out, x, None, history) + decoder.conv_out.bias
    return x.permute(0, 4, 1, 2, 3)  # type: ignore[no-any-return]


def encode(encoder: Any, pixels_BCThw: Tensor, history: History) -> Tensor:
    """`WanEncoder3d` on some frames of a video: [B, C, T, h, w] -> [B, C', T', h', w']."""
    x = causal(encoder.conv_in, pixels_BCThw.permute(0, 2, 3, 4, 1).contiguous(), history)
    for block in encoder.down_blocks:
        x = down(block, x, history)
    x = middle(encoder.mid_block, x, history)
    x = normed(encoder.norm_out, encoder.conv_out, x, None, history) + encoder.conv_out.bias
    return x.permute(0, 4, 1, 2, 3)  # type: ignore[no-any-return]
