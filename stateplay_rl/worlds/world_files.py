"""Which files make a world: the packaged arena world, or a world file (YAML). No torch here."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from stateplay_rl.config.base import load_config
from stateplay_rl.config.world import WorldConfig, WorldFiles
from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.stores.foreign import parse_json

LATENT_WORLD = "latent_world.safetensors"
TRANSITION_TOKENIZER = "transition_tokenizer.safetensors"
VAE = "vae.safetensors"
TEXT_ENCODER = "text_encoder.safetensors"
TEXT_TOKENIZER = "text_tokenizer.json"
WEIGHT_HASHES = "weights.json"

ARENA = "arena"
ARENA_FPS = 20.0
ARENA_FRAME_HEIGHT, ARENA_FRAME_WIDTH = 64, 96


def arena_weights_folder() -> Path:
    """Folder of the packaged arena weights."""
    return Path(str(resources.files("stateplay_rl"))) / "arena" / "weights"


def arena_world(folder: Path | None = None) -> WorldConfig:
    """The arena world of a folder of weight files (default: the packaged one).

    Raises:
        InputError: a file is missing.
        CorruptionError: a file does not match `weights.json`.
    """
    folder = arena_weights_folder() if folder is None else folder
    verify_weights(folder)
    return WorldConfig(
        name=ARENA,
        preset="arena",
        files=WorldFiles(
            checkpoint=(folder / LATENT_WORLD,),
            transition_tokenizer=folder / TRANSITION_TOKENIZER,
            vae=folder / VAE,
            text_encoder=folder / TEXT_ENCODER,
            text_tokenizer=folder / TEXT_TOKENIZER,
        ),
        fps=ARENA_FPS,
        frame_height=ARENA_FRAME_HEIGHT,
        frame_width=ARENA_FRAME_WIDTH,
        compute_dtype="float32",
        gradient_checkpointing="off",
    )


def verify_weights(folder: Path) -> None:
    """Compare the weight files of a folder with the hashes in its `weights.json`.

    Raises:
        InputError: the list or a file is missing.
        CorruptionError: the list is unreadable, or a file differs.
    """
    listing = folder / WEIGHT_HASHES
    if not listing.is_file():
        raise InputError(
            f"no {WEIGHT_HASHES} in {folder}: the arena weights are not installed",
            "install the package with its data files, or train them: see examples/arena_base",
        )
    try:
        hashes = parse_json(listing.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptionError(f"{listing} is not JSON ({error})", "reinstall the package") from error
    for name in (LATENT_WORLD, TRANSITION_TOKENIZER, VAE, TEXT_ENCODER, TEXT_TOKENIZER):
        path = folder / name
        if not path.is_file():
            raise InputError(f"weight file not found: {path}", "reinstall the package")
        if sha256_file(path) != hashes.get(name):
            raise CorruptionError(f"{path} does not match its hash in {WEIGHT_HASHES}", "reinstall the package")


def resolve_world(world: str) -> WorldConfig:
    """The config of `--world`: `arena`, or the path of a world file; paths come out absolute.

    Raises:
        InputError: no such world, or a file that it names is missing.
        UsageError: the world file has an unknown key or a wrong type.
        CorruptionError: a packaged weight file is damaged.
    """
    if world == ARENA:
        return arena_world()
    file = Path(world)
    if not file.is_file():
        raise InputError(f"world {world!r} is neither 'arena' nor a file", "give --world arena or --world PATH.yaml")
    config = load_config(WorldConfig, file)
    root = file.resolve().parent
    files = config.files
    absolute = WorldFiles(
        checkpoint=tuple(root / path for path in files.checkpoint),
        base=tuple(root / path for path in files.base),
        transition_tokenizer=root / files.transition_tokenizer,
        vae=root / files.vae,
        text_encoder=root / files.text_encoder,
        text_tokenizer=root / files.text_tokenizer,
        training_config=None if files.training_config is None else root / files.training_config,
    )
    for path in all_files(absolute):
        if not path.exists():
            raise InputError(f"{file}: weight file not found: {path}", "paths are relative to the world file")
    folders = {
        name: None if path is None else root / path
        for name, path in (("audit", config.audit), ("parity", config.parity), ("checkout", config.checkout))
    }
    if folders["checkout"] is not None and not folders["checkout"].is_dir():
        raise InputError(f"{file}: no checkout at {folders['checkout']}", "paths are relative to the world file")
    return config.model_copy(update={"files": absolute, **folders})


def all_files(files: WorldFiles) -> tuple[Path, ...]:
    """Every file that makes a world, checkpoint shards first; folders and indices as they were named."""
    rest = (files.transition_tokenizer, files.vae, files.text_encoder, files.text_tokenizer)
    config = () if files.training_config is None else (files.training_config,)
    return (*files.checkpoint, *files.base, *rest, *config)
