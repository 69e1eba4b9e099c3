"""`WorldConfig`: which weight files make a world, and how it is run.

A world file is this config as YAML. Its paths are relative to the file, so that a folder can be moved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from stateplay_rl.config.base import FrozenConfig

Preset = Literal["stateplay-5b", "arena"]
Backend = Literal["native", "stateplay"]
Attention = Literal["auto", "torch", "cudnn", "flash", "efficient"]


def _switch(value: object) -> object:
    # YAML reads a bare `on` and `off` as true and false.
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


def _checkpointing(value: object) -> object:
    return {True: "full", False: "off"}.get(value, value) if isinstance(value, bool) else value


Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)]
Checkpointing = Annotated[Literal["off", "selective", "full"], BeforeValidator(_checkpointing)]


class WorldFiles(FrozenConfig):
    """Weight files of a world; paths relative to the world file, or absolute."""

    checkpoint: tuple[Path, ...] = Field(
        min_length=1,
        description="safetensors with transformer, latent-state modules and predictor, training key names; "
        "several files are shards; an index or a folder of shards will do",
    )
    base: tuple[Path, ...] = Field(
        default=(),
        description="transformer of the base model, for a checkpoint that holds only what was trained: shards, an "
        "index or a folder; the checkpoint's own tensors win",
    )
    transition_tokenizer: Path = Field(description="frozen stage-1 tokenizer (safetensors)")
    vae: Path = Field(description="VAE weights: Wan2.2_VAE.pth, a safetensors file, or a diffusers folder")
    text_encoder: Path = Field(
        description="UMT5 encoder weights: models_t5_umt5-xxl-enc-bf16.pth, safetensors, or a folder of shards"
    )
    text_tokenizer: Path = Field(description="tokenizer.json, or the folder that holds it")
    training_config: Path | None = Field(
        default=None, description="YAML or JSON config of the supervised run: states what no shape shows"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_file_may_be_a_plain_path(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        lists = ("checkpoint", "base")
        return {k: [v] if k in lists and isinstance(v, (str, Path)) else v for k, v in values.items()}


class ArchitectureLines(FrozenConfig):
    """Sizes that the world file states; what is left out comes from the preset.

    The first group has no shape of its own in any file: stating it here (or in `files.training_config`) is what
    makes a checkpoint trainable. Sizes of the second group are compared with the files' shapes.
    """

    heads: int | None = Field(default=None, gt=0, description="attention heads of the backbone")
    eps: float | None = Field(default=None, gt=0, description="epsilon of the backbone's norms")
    fsq_levels: tuple[int, ...] | None = Field(default=None, description="levels per quantised dimension")
    state_heads: int | None = Field(default=None, gt=0, description="heads of initializer and transition layers")
    coupling_heads: int | None = Field(default=None, gt=0, description="heads of latent_state_attention")
    tokenizer_heads: int | None = Field(default=None, gt=0, description="heads of the transition tokenizer")
    step_encoding: str | None = Field(default=None, description="how a step enters module B: sinusoidal")
    visibility: str | None = Field(default=None, description="state slots that a video slot sees: slot_causal")
    state_dim: int | None = Field(default=None, gt=0, description="width of a state token")
    state_tokens: int | None = Field(default=None, gt=0, description="state tokens per latent slot")
    coupling_width: int | None = Field(default=None, gt=0, description="inner width of latent_state_attention")
    transition_layers: int | None = Field(default=None, gt=0, description="layers of module B")
    mlp_ratio: int | None = Field(default=None, gt=0, description="inner MLP width over state_dim")
    tokenizer_width: int | None = Field(default=None, gt=0, description="width of the transition tokenizer")
    tokenizer_mlp_ratio: int | None = Field(default=None, gt=0, description="inner MLP width over tokenizer_width")

    def stated(self) -> dict[str, object]:
        """The lines that say something."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


class CheckoutOptions(FrozenConfig):
    """Where the parts of a checkout are, and how its classes are built; the defaults are the public ancestor's."""

    symbols: dict[str, str] = Field(
        default={},
        description="part -> module:name, for parts that lie elsewhere (model, model_fn, vae, text_encoder, "
        "text_tokenizer, scheduler, transition_tokenizer, sampler)",
    )
    model_kwargs: dict[str, Any] = Field(default={}, description="further arguments of StatePlayModel")
    vae_kwargs: dict[str, Any] = Field(default={}, description="arguments of the VAE's class")
    text_encoder_kwargs: dict[str, Any] = Field(default={}, description="arguments of the text encoder's class")
    text_tokenizer_kwargs: dict[str, Any] = Field(default={}, description="further arguments of the text tokenizer")
    scheduler_kwargs: dict[str, Any] = Field(default={}, description="further arguments of the scheduler")
    transition_tokenizer_kwargs: dict[str, Any] = Field(
        default={}, description="arguments of the stage-1 tokenizer's class"
    )
    model_fn_kwargs: dict[str, Any] = Field(
        default={}, description="further arguments of model_fn_stateplay_latent, equal in every call"
    )


class SpeedOptions(FrozenConfig):
    """Faster ways to the same numbers, native backend only; results agree within rounding, not bit for bit.

    `auto` is the fast way on a GPU and the plain one on a CPU, where every bit stays what it was.
    """

    attention: Attention = Field(
        default="auto",
        description="kernel of self- and text attention: auto (cudnn from Hopper on, else torch), torch (its own "
        "choice), cudnn, flash, efficient; `sprl verify profile` measures them",
    )
    compile: Switch = Field(
        default="auto",
        description="compile the repeated block once per shape (never when weights are sharded): auto, on, off",
    )
    kernels: Switch = Field(
        default="auto",
        description="own Triton kernels in a block: residual sums with their norms, rotated rows, and text attention "
        "that counts the padding's one key; auto (half precision on a GPU), on, off",
    )
    park_text: Switch = Field(
        default="auto",
        description="text encoder on the host between prompts; auto: on cards with less than 64 GiB",
    )
    vae: Switch = Field(
        default="auto", description="VAE with channels last, fused norms and 2x2 upsampling: auto, on, off"
    )


class WorldConfig(FrozenConfig):
    """A world: backend, sizes, files, and how to compute."""

    name: str = Field(min_length=1, description="shown in records and reports")
    backend: Backend = Field(
        default="native",
        description="native = this package's own model; stateplay = the code of `checkout`, in this process",
    )
    checkout: Path | None = Field(default=None, description="the user's StatePlay checkout; makes backend stateplay")
    checkout_options: CheckoutOptions = CheckoutOptions()
    preset: Preset = Field(description="sizes: stateplay-5b or arena")
    files: WorldFiles
    key_map: dict[str, str] = Field(
        default={},
        description="their prefix -> our prefix, for latent modules of other names; * is a block index",
    )
    architecture: ArchitectureLines = ArchitectureLines()
    training_keys: dict[str, str] = Field(
        default={}, description="our setting -> dotted key in files.training_config, where its name is another"
    )
    parity: Path | None = Field(
        default=None,
        description="verify-<utc>/ of `sprl verify parity` against the checkout; a real checkpoint needs it before it "
        "is trained through the native model",
    )
    audit: Path | None = Field(
        default=None, description="audit-<stem>/ of the checkpoint; train-nft refuses a world without one"
    )
    fps: float = Field(default=20.0, gt=0, description="frames per second of the clips")
    frame_height: int = Field(default=480, gt=0, description="picture height in pixels")
    frame_width: int = Field(default=832, gt=0, description="picture width in pixels")
    compute_dtype: Literal["float32", "bfloat16"] = Field(
        default="bfloat16",
        description="dtype of frozen weights and activations; trained weights stay float32",
    )
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:<n>")
    gradient_checkpointing: Checkpointing = Field(
        default="full",
        description="blocks recomputed in the backward pass: off, selective (every second one), full; less memory, "
        "more time; true and false mean full and off",
    )
    speed: SpeedOptions = SpeedOptions()

    @model_validator(mode="before")
    @classmethod
    def _empty_blocks_and_the_backend_of_a_checkout(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        # A block of which every line is commented out is null in YAML: nothing is stated.
        blocks = ("architecture", "checkout_options", "training_keys", "key_map", "speed")
        values = {k: v for k, v in values.items() if not (k in blocks and v is None)}
        if values.get("checkout") is not None and "backend" not in values:
            return {**values, "backend": "stateplay"}
        return values

    @model_validator(mode="after")
    def _a_backend_has_its_code(self) -> Self:
        if self.backend == "stateplay" and self.checkout is None:
            raise ValueError("backend stateplay needs `checkout`: the path of the StatePlay checkout")
        if self.backend == "stateplay" and self.gradient_checkpointing == "selective":
            raise ValueError("a checkout recomputes all blocks or none: gradient_checkpointing full or off")
        if self.backend == "stateplay" and self.speed != SpeedOptions():
            raise ValueError("`speed` is the native model's: a checkout runs its own code as it is")
        if self.backend == "native" and self.checkout is not None:
            raise ValueError("backend native does not run a checkout: leave `checkout` or `backend` out")
        return self
