"""From a resolved world config to a `CheckoutWorld`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import InputError
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.runtime import ranks
from stateplay_rl.stores.atomic import sha256_file, sha256_json
from stateplay_rl.worlds.base import WorldSpec
from stateplay_rl.worlds.native.shards import shards_of
from stateplay_rl.worlds.native.world import WorldHashes
from stateplay_rl.worlds.stateplay.networks import Checkout, load_networks, open_checkout, scheduler_sigmas
from stateplay_rl.worlds.stateplay.sampler import CheckoutSampler, require_equal
from stateplay_rl.worlds.stateplay.symbols import REFERENCE_COMMIT
from stateplay_rl.worlds.stateplay.text import CheckoutText
from stateplay_rl.worlds.stateplay.world import CheckoutWorld

CHECKED_GRIDS = ((30, 5.0), (4, 5.0))
"""Sampling grids (steps, shift) on which the checkout's scheduler must agree with ours."""

GRID_TOLERANCE = 1e-6
CHECKED_PROMPT = "NPC: Active_Behavior(Walk Left), Strategy(Passive Guarding)"


def load_checkout_world(config: WorldConfig, spec: WorldSpec, device: torch.device) -> CheckoutWorld:
    """Open the checkout, say where it differs from the expectation, build and fill its networks.

    Raises:
        InputError: a part is missing, keys do not fit, its sampling grid is another one, or the sampler that the
            world file names samples something else.
        CorruptionError: a file is not readable.
    """
    checkout = open_checkout(config)
    if ranks().is_main:
        for line in differences(checkout):
            print(line, file=sys.stderr)
    _check_scheduler(checkout, config)
    dtype: torch.dtype = getattr(torch, config.compute_dtype)
    networks = load_networks(checkout, config, dtype, device)
    record = checkout.record
    world = CheckoutWorld(
        spec,
        networks,
        checkout_hashes(checkout, config),
        {"backend": "stateplay", "checkout": record},
        device=device,
        compute_dtype=dtype,
        gradient_checkpointing=config.gradient_checkpointing == "full",
        model_fn_kwargs=config.checkout_options.model_fn_kwargs,
    )
    if "sampler" in checkout.symbols.found:
        where = checkout.symbols.found["sampler"].where
        kwargs = config.checkout_options.model_fn_kwargs
        sampler = CheckoutSampler(checkout.part("sampler"), where, networks.dit, networks.model_fn, kwargs, dtype)
        text_BLD = CheckoutText(networks.text_encoder, networks.text_tokenizer).encode([CHECKED_PROMPT])
        record["sampler"] = require_equal(world, sampler, text_BLD.to(device))
        world.own_sampler = sampler
    return world


def differences(checkout: Checkout) -> list[str]:
    """Lines for people: how this checkout differs from the one that the adapter was written against."""
    facts = checkout.facts
    if facts.is_reference and not checkout.symbols.differences:
        return []
    state = "no git repository" if facts.commit is None else f"commit {facts.commit[:8]}"
    changed = ", with local changes" if facts.dirty else ""
    first = f"checkout {facts.path}: {state}{changed}; the adapter was written against {REFERENCE_COMMIT}"
    return [first, *(f"  {text}" for text in checkout.symbols.differences)]


def checkout_hashes(checkout: Checkout, config: WorldConfig) -> WorldHashes:
    """Hashes of the weight files, the description and the code: other code is another world."""
    parts = config.files
    common = {
        "code": checkout.facts.code_sha256,
        "options": config.checkout_options.model_dump(mode="json"),
    }
    encoders = {
        **common,
        "vae": _hashes(parts.vae),
        "text_encoder": _hashes(parts.text_encoder),
        "text_tokenizer": _hashes(parts.text_tokenizer),
        "transition_tokenizer": _hashes(parts.transition_tokenizer),
    }
    world = {
        "encoders": encoders,
        "checkpoint": [_hashes(path) for path in parts.checkpoint],
        "base": [_hashes(path) for path in parts.base],
        "preset": config.preset,
    }
    return WorldHashes(sha256_json(world), sha256_json(encoders))


def _hashes(path: Path) -> list[str]:
    """sha256 of a file, of the shards of an index or folder, or of the files of a tokenizer's folder."""
    words = path.is_dir() and any((path / name).is_file() for name in ("tokenizer.json", "spiece.model"))
    files = [f for f in sorted(path.iterdir()) if f.is_file()] if words else list(shards_of(path))
    return [sha256_file(file) for file in files]


def _check_scheduler(checkout: Checkout, config: WorldConfig) -> None:
    for steps, shift in CHECKED_GRIDS:
        theirs = scheduler_sigmas(checkout, config, steps, shift)
        if theirs is None:
            return
        ours = sampling_sigmas(steps, shift)
        if theirs.shape != ours.shape or float((theirs.double().cpu() - ours.double()).abs().max()) > GRID_TOLERANCE:
            raise InputError(
                f"the checkout's scheduler gives {theirs.tolist()[:3]}... for {steps} steps at shift {shift:g}, the "
                f"model's grid is {ours.tolist()[:3]}...",
                "set scheduler_kwargs in checkout_options, or correct the checkout",
            )
