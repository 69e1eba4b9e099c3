"""`load_world`: from a resolved world config to a `World`."""

from __future__ import annotations

import torch

from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.worlds.base import WorldSpec
from stateplay_rl.worlds.native.package import load_modules, world_hashes
from stateplay_rl.worlds.native.vae import TEMPORAL_FACTOR, VAE_PRESETS
from stateplay_rl.worlds.native.world import NativeWorld


def load_world(config: WorldConfig) -> NativeWorld:
    """Load every weight file of a world and check it key by key.

    Args:
        config: as `world_files.resolve_world` returns it (absolute paths).

    Raises:
        InputError: a file is missing, or keys are missing, unexpected or of another shape (named).
        CorruptionError: a file is unreadable.
        UsageError: the device does not exist.
    """
    device = resolve_device(config.device)
    vae = VAE_PRESETS[config.preset]
    spec = WorldSpec(
        name=config.name,
        frame_height=config.frame_height,
        frame_width=config.frame_width,
        fps=config.fps,
        latent_channels=vae.z_dim,
        spatial_factor=vae.spatial_factor,
        temporal_factor=TEMPORAL_FACTOR,
    )
    return NativeWorld(
        spec,
        load_modules(config, device),
        world_hashes(config),
        device=device,
        compute_dtype=getattr(torch, config.compute_dtype),
        gradient_checkpointing=config.gradient_checkpointing,
    )


def resolve_device(name: str) -> torch.device:
    """`auto` is the current CUDA device where there is one, else the CPU.

    Raises:
        UsageError: not a device name, or a CUDA device that is not there.
    """
    if name == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device {name!r} is not a device name", "use auto, cpu, cuda or cuda:<n>") from error
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise UsageError(f"device {name!r} does not exist here", "use --set world.device=auto")
    return device
