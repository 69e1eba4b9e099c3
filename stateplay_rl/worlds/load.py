"""`load_world`: from a resolved world config to a `World`."""

from __future__ import annotations

from pathlib import Path

import torch

from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.worlds.base import World, WorldSpec
from stateplay_rl.worlds.native.architecture import architecture_of
from stateplay_rl.worlds.native.keymap import any_to_ours
from stateplay_rl.worlds.native.package import load_modules, world_hashes
from stateplay_rl.worlds.native.policy_weights import require_policy_fits
from stateplay_rl.worlds.native.speed import resolve_speed
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.vae import TEMPORAL_FACTOR, VAE_PRESETS
from stateplay_rl.worlds.native.weight_files import list_tensors
from stateplay_rl.worlds.native.world import NativeWorld


def load_world(config: WorldConfig) -> World:
    """Load every weight file of a world and check it key by key.

    Args:
        config: as `world_files.resolve_world` returns it (absolute paths).

    Raises:
        InputError: a file is missing, or keys are missing, unexpected or of another shape (named); a checkout
            that lacks what the adapter calls.
        CorruptionError: a file is unreadable.
        UsageError: the device does not exist.
    """
    if config.backend == "stateplay":
        from stateplay_rl.worlds.stateplay.load import load_checkout_world

        return load_checkout_world(config, world_spec(config), resolve_device(config.device))
    return load_native_world(config)


def load_native_world(config: WorldConfig) -> NativeWorld:
    """`load_world` for backend `native`."""
    device = resolve_device(config.device)
    return NativeWorld(
        world_spec(config),
        load_modules(config, device),
        world_hashes(config),
        device=device,
        compute_dtype=getattr(torch, config.compute_dtype),
        checkpointing=config.gradient_checkpointing,
        speed=resolve_speed(config.speed, device, getattr(torch, config.compute_dtype)),
    )


def require_policy(config: WorldConfig, policy: Path) -> None:
    """Compare an exported policy's names and shapes with a world's, from headers alone.

    Raises:
        InputError: a name that the world does not have, another shape, or a missing file.
        CorruptionError: the file is unreadable.
    """
    translations = tuple(sorted(config.key_map.items()))
    shapes = {tensor.name: tensor.shape for tensor in list_tensors([policy])}
    if config.backend == "stateplay":
        from stateplay_rl.worlds.stateplay.networks import build_model, open_checkout

        require_policy_fits(shapes, build_model(open_checkout(config), config), str(policy))
        return
    sizes = architecture_of(config).sizes
    with torch.device("meta"):
        model = LatentStateTransformer(sizes.transformer, sizes.latent_state)
    ours = {any_to_ours(name, translations) or name: shape for name, shape in shapes.items()}
    require_policy_fits(ours, model, str(policy))


def world_spec(config: WorldConfig) -> WorldSpec:
    """Sizes that the rest of the package needs."""
    vae = VAE_PRESETS[config.preset]
    return WorldSpec(
        name=config.name,
        frame_height=config.frame_height,
        frame_width=config.frame_width,
        fps=config.fps,
        latent_channels=vae.z_dim,
        spatial_factor=vae.spatial_factor,
        temporal_factor=TEMPORAL_FACTOR,
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
