"""A checkout's own sampler, used only after it has given what this package's Euler loop gives.

Its interface is not public, so the world file names it (`checkout_options.symbols.sampler`) and it is called by the
argument names below. Equality on a drawn input is asked for, because everything downstream (records, groups, parity)
says `euler`: a sampler that computes something else would be recorded as what it is not.

Shapes: B candidates, C latent channels, f latent slots, H W latent grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stateplay_rl.errors import InputError
from stateplay_rl.nft.randomness import DrawKey, normal
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.worlds.base import ConditionBatch, World
from stateplay_rl.worlds.sampling import SamplingMethod, solved_candidates
from stateplay_rl.worlds.stateplay.networks import accepted

REQUIRED = ("dit", "latents", "first_frame_latents", "context", "keyboard_action")
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest error relative to the largest value, by compute dtype; against latents kept in float32 or in bfloat16."""
CHECKED_STEPS, CHECKED_SLOTS = 3, 3


@dataclass(frozen=True)
class CheckoutSampler:
    """The checkout's function, called for one candidate at a time.

    Args:
        function: of the checkout.
        where: `module:name (file:line)`.
        dit, model_fn: passed on.
        model_fn_kwargs: further arguments of every model call, passed on.
        dtype: compute dtype of the model.
    """

    function: Callable[..., Any]
    where: str
    dit: nn.Module
    model_fn: Callable[..., Any]
    model_fn_kwargs: Mapping[str, Any]
    dtype: torch.dtype

    def __call__(self, noise_BCfHW: Tensor, sigmas: Tensor, conditions: ConditionBatch) -> Tensor:
        """Clean latents float32 [B, C, f, H, W], slot 0 the first frame's.

        Args:
            noise_BCfHW: float32, on the world's device.
            sigmas: falling grid [steps].
            conditions: B rows.

        Raises:
            InputError: it takes other arguments, or returns something else than latents of this shape.
        """
        rows = [self._one(noise_BCfHW[b], sigmas, conditions.select([b])) for b in range(len(conditions))]
        return torch.cat(rows)

    def _one(self, noise_CfHW: Tensor, sigmas: Tensor, condition: ConditionBatch) -> Tensor:
        first_1C1HW = condition.first_latent_BC1HW.to(self.dtype)
        offered = {
            "dit": self.dit,
            "model_fn": self.model_fn,
            "latents": noise_CfHW[None],
            "first_frame_latents": first_1C1HW,
            "context": condition.text_BLD.to(self.dtype),
            "keyboard_action": condition.action_bins_BfK.to(self.dtype),
            "sigmas": sigmas,
            "num_inference_steps": len(sigmas),
            "shift": shift_of(sigmas),
            "cfg_scale": 1.0,
            **self.model_fn_kwargs,
        }
        result = self.function(**accepted(self.function, offered, (*REQUIRED, *self.model_fn_kwargs)))
        clean = result.get("latents") if isinstance(result, Mapping) else result
        if not isinstance(clean, Tensor) or clean.shape != noise_CfHW[None].shape:
            shown = list(clean.shape) if isinstance(clean, Tensor) else f"a {type(result).__name__}"
            raise InputError(f"{self.where} gave {shown} for latents {[1, *noise_CfHW.shape]}", _HINT)
        return torch.cat([condition.first_latent_BC1HW.float(), clean[:, :, 1:].float()], dim=2)


_HINT = "correct checkout_options.symbols.sampler, or leave it out: this package's Euler loop is used then"


def shift_of(sigmas: Tensor) -> float:
    """The shift s of sigma = s u / (1 + (s - 1) u), u = 1, 1 - 1/n, ...; 1 for a single step, which has none."""
    if len(sigmas) < 2:
        return 1.0
    # From the last sigma: near 1 the shift hangs on the last bits of a float32.
    u, sigma = 1.0 / len(sigmas), float(sigmas[-1])
    return round(sigma * (1.0 - u) / (u * (1.0 - sigma)), 4)


def require_equal(world: World, sampler: CheckoutSampler, text_BLD: Tensor) -> str:
    """Sample a drawn condition both ways.

    Args:
        world: with its sampler not yet in use.
        sampler: to be checked.
        text_BLD: an encoded prompt.

    Returns:
        A sentence for the record.

    Raises:
        InputError: it fails, or its latents are others than the Euler loop's.
    """
    spec = world.spec
    grid = (spec.frame_height // spec.spatial_factor, spec.frame_width // spec.spatial_factor)
    condition = ConditionBatch(
        ("sampler-check",),
        normal(DrawKey(0, "sampler_first"), (1, spec.latent_channels, 1, *grid)).to(world.device),
        (normal(DrawKey(0, "sampler_buttons"), (1, CHECKED_SLOTS, spec.buttons)) > 0.5).float().to(world.device),
        text_BLD,
    )
    noise = normal(DrawKey(0, "sampler_noise"), (1, spec.latent_channels, CHECKED_SLOTS, *grid)).to(world.device)
    sigmas = sampling_sigmas(CHECKED_STEPS)
    with torch.inference_mode():
        theirs = sampler(noise, sigmas, condition)
        errors = [
            _error(
                theirs, solved_candidates(world, condition, noise, sigmas, SamplingMethod(latent_dtype=dtype)).float()
            )
            for dtype in (torch.float32, torch.bfloat16)
        ]
    if not min(errors) <= TOLERANCES[world.compute_dtype]:  # also where it is not finite
        raise InputError(
            f"{sampler.where} does not sample what this package's Euler loop samples: relative error "
            f"{min(errors):.1e} after {CHECKED_STEPS} steps, {TOLERANCES[world.compute_dtype]:.0e} is allowed",
            _HINT,
        )
    return f"the checkout's {sampler.where}; equal to this package's Euler loop within {min(errors):.1e}"


def _error(theirs: Tensor, ours: Tensor) -> float:
    return float((theirs - ours)[:, :, 1:].abs().max() / ours.abs().max())
