"""Settings of `sprl verify`: what was checked, as it stands in the record."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.config.rollout import Mode
from stateplay_rl.config.train_nft import LossConfig, TrainNftConfig
from stateplay_rl.config.world import SpeedOptions


class InstallConfig(FrozenConfig):
    """`verify install` has no settings."""


class GoldenConfig(FrozenConfig):
    """What `verify golden` compares."""

    folder: Path = Field(description="folder of golden files, any subset")
    clips: Path | None = Field(default=None, description="folder of the real clips that some golden files describe")


class DirectoryConfig(FrozenConfig):
    """What `verify dir` re-hashes."""

    path: Path = Field(description="any directory that sprl wrote")
    search: tuple[Path, ...] = Field(default=(), description="further folders in which inputs are looked for by hash")
    replay: bool = Field(default=True, description="compute one score and one batch's NFT steps again")


class SignalConfig(FrozenConfig):
    """What `verify signal` measures: scored groups of the current policy, and their gradients."""

    groups: Path = Field(description="groups/ of `sprl rollout`, or a run/")
    scores: Path | None = Field(default=None, description="scores/ of these groups; none: those of the run's segments")
    conditions: Path | None = Field(
        default=None, description="conditions/ of these groups; none: as the groups' manifest records them"
    )
    world: str = Field(default="arena", description="`arena` or the path of a world file; must be the groups' world")
    policy: Path | None = Field(
        default=None, description="exported policy that sampled the groups; none: the base weights"
    )
    probe: Path | None = Field(
        default=None, description="probe of the judge by `sprl score --probe`; none: the last one in its request store"
    )
    mode: Mode = Field(default="transition", description="parameters whose gradients are compared")
    seed: int = Field(default=0, ge=0, description="seed of noise levels, noise and splits")
    limit: int | None = Field(default=None, ge=2, description="only the first N fully judged groups, by group id")
    splits: int = Field(default=32, ge=1, description="random splits of the groups into two halves")
    wished_cosine: float = Field(
        default=0.5, gt=0, lt=1, description="agreement that the asked number of conditions gives"
    )
    draws: int = Field(
        default=4, ge=1, description="draws of (sigma, eps) per candidate; 1 is what one optimizer step sees"
    )
    samples_per_call: int = Field(default=1, ge=1, description="videos per forward (memory against speed)")
    loss: LossConfig = LossConfig()


class ParityConfig(FrozenConfig):
    """What `verify parity` compares: two worlds on the same inputs."""

    worlds: tuple[str, ...] = Field(description="two worlds: `arena` or paths of world files; the first one encodes")
    conditions: Path | None = Field(
        default=None, description="conditions/ whose first condition is the input; none: a drawn picture and buttons"
    )
    slots: int = Field(default=3, ge=2, le=26, description="latent slots of the compared clip")
    sigmas: tuple[float, ...] = Field(default=(0.95, 0.6, 0.2), description="noise levels of the compared velocities")
    steps: int = Field(default=2, ge=1, description="Euler steps of the compared rollout")
    seed: int = Field(default=0, ge=0, description="seed of noise, buttons and the drawn picture")
    tolerance_encode: float | None = Field(
        default=None, gt=0, description="largest relative error of latents, text and decoded frames; none: by dtype"
    )
    tolerance: float | None = Field(
        default=None, gt=0, description="largest relative error of velocities, states and rollout; none: by dtype"
    )
    tolerance_gradient: float | None = Field(
        default=None, gt=0, description="largest relative error of module B's gradients; none: by dtype"
    )

    @field_validator("worlds")
    @classmethod
    def _two(cls, worlds: tuple[str, ...]) -> tuple[str, ...]:
        if len(worlds) != 2:
            raise ValueError(f"two worlds are compared, {len(worlds)} are named: --world A --world B")
        return worlds

    @field_validator("sigmas")
    @classmethod
    def _noise_levels(cls, sigmas: tuple[float, ...]) -> tuple[float, ...]:
        if not sigmas or not all(0 < sigma <= 1 for sigma in sigmas):
            raise ValueError("noise levels lie in (0, 1]")
        return sigmas


class ActionsConfig(FrozenConfig):
    """What `verify actions` calibrates on, and measures."""

    conditions: Path = Field(description="conditions/ whose real clips calibrate")
    groups: Path | None = Field(default=None, description="groups of these conditions to measure; none: calibrate only")
    clips: int = Field(default=100, ge=1, description="real clips that calibrate, at most")


class ResumeConfig(FrozenConfig):
    """What `verify resume` runs: a short version of the user's own training, killed and resumed."""

    train: TrainNftConfig = Field(description="the training whose settings are drilled")
    conditions: Path = Field(description="conditions/ that it trains on")
    batches: int = Field(default=2, ge=1, description="batches of the short run")
    kills: int = Field(default=3, ge=1, description="SIGKILLs that must hit a living run")
    processes: int = Field(default=1, ge=1, description="ranks of every start, on this machine")
    seed: int = Field(default=7, ge=0, description="seed of the moments of the kills")
    weight_tolerance: float = Field(
        default=1e-6, ge=0, description="largest weight difference where sums may be ordered otherwise: GPUs, ranks"
    )


class PreflightConfig(FrozenConfig):
    """What `verify preflight` looks at before a long run."""

    train: TrainNftConfig = Field(description="the very config of the long run")
    conditions: Path | None = Field(default=None, description="conditions/ that it will train on")
    run: Path | None = Field(default=None, description="where the run will lie; none: beside the record")
    resume_record: Path | None = Field(default=None, description="verify-<utc>/ of a passed `sprl verify resume`")
    sample: int = Field(default=4, ge=1, description="conditions that are checked and rolled out")


class ProfileConfig(FrozenConfig):
    """What `verify profile` times."""

    world: str = Field(description="`arena`, the path of a world file, or with random_weights also `stateplay-5b`")
    random_weights: bool = Field(default=False, description="draw weights of the world's shapes; no file is read")
    cap_gib: float | None = Field(
        default=None, gt=0, description="this process may take so much of the GPU's memory, as on a smaller card"
    )
    compare: Literal["diffusers"] | None = Field(
        default=None, description="time the library's own models on the same inputs, too"
    )
    frames: int | None = Field(default=None, ge=5, description="frames of the video; none: 97, arena 33")
    rows: tuple[str, ...] = Field(default=(), description="only rows and parts whose names begin so; none: all")
    repeats: int = Field(default=5, ge=1, description="calls behind each median")
    steps: int = Field(default=30, ge=2, description="Euler steps of a candidate")
    few_steps: int = Field(default=12, ge=2, description="steps of a candidate by a high-order solver")
    seconds: float | None = Field(
        default=None, gt=0, description="rows that would begin later than this are left out and said so"
    )
    speed: SpeedOptions = SpeedOptions()

    @field_validator("frames")
    @classmethod
    def _whole_slots(cls, frames: int | None) -> int | None:
        if frames is not None and frames % 4 != 1:
            raise ValueError(f"{frames} frames: the count must be 1 (mod 4)")
        return frames
