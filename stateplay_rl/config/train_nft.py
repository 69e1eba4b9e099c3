"""Settings of `sprl train-nft`. Defaults are the real world's starting points; arena has a preset of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.config.rollout import Mode, SamplingConfig
from stateplay_rl.config.score import JudgeConfig


class LossConfig(FrozenConfig):
    """DiffusionNFT's loss and the map from scores to optimality r."""

    form: Literal["nft", "paper_velocity_mse"] = Field(
        "nft",
        description="`nft` is the public trainer's normalised form; the other is the paper's equation 5",
    )
    beta_nft: float = Field(1.0, gt=0, le=1, description="distance of the implicit policies from the old one")
    advantage_clip: float = Field(5.0, gt=0, description="advantages are clipped at this many deviations")
    std_floor_points: float = Field(5.0, ge=0, description="smallest deviation that scores are divided by, points")
    deviation: Literal["batch", "group"] = Field("batch", description="whose deviation scales the advantages")
    gating: Literal["standard", "guard"] = Field("standard", description="which judged groups take part")
    guard_spread_points: float = Field(5.0, ge=0, description="guard: smallest spread of a group's scores, points")
    guard_best_points: float = Field(50.0, ge=0, le=100, description="guard: smallest best score of a group, points")
    full_schedule: bool = Field(False, description="train every sampling sigma per visit instead of one draw")
    shared_group_noise: bool = Field(False, description="one (sigma, eps) for all candidates of a group")


class AnchorConfig(FrozenConfig):
    """Weights of the terms that hold the policy to real clips and to the SFT weights."""

    fm_real: float = Field(0.1, ge=0, description="weight of the flow-matching loss on the condition's real clip")
    transition_real: float = Field(0.01, ge=0, description="weight of the transition cross-entropy on real clips")
    reference_penalty: float = Field(0.0, ge=0, description="weight of the distance to the SFT weights' velocity")
    anchor_every: int = Field(1, ge=1, description="anchors take part in every n-th optimizer step of the run")


class OptimizerConfig(FrozenConfig):
    """AdamW with a constant rate per parameter group."""

    learning_rate_transition: float = Field(2e-5, gt=0, description="rate of module B")
    learning_rate_coupling: float = Field(1e-4, gt=0, description="rate of the coupling LoRA")
    learning_rate_full: float = Field(2e-5, gt=0, description="rate of all parameters (mode `full`)")
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_gradient_norm: float = Field(1.0, gt=0)
    samples_per_step: int = Field(28, ge=1, description="global number of samples of one optimizer step")
    samples_per_call: int = Field(1, ge=1, description="videos per forward; fixed, so that ranks do not matter")
    inner_epochs: int = Field(2, ge=1, description="passes over a batch's samples")


class OldPolicyConfig(FrozenConfig):
    """old <- eta old + (1 - eta) live after each batch, eta = min(slope * optimizer steps, maximum)."""

    slope: float = Field(0.001, ge=0)
    maximum: float = Field(0.5, ge=0, lt=1)


class HeldoutConfig(FrozenConfig):
    """Evaluation on conditions that no training sees, with fixed seeds."""

    conditions: int = Field(0, ge=0, description="held-out conditions per evaluation; 0 is off")
    samples: int = Field(2, ge=1, description="candidates per condition")
    every_batches: int = Field(10, ge=1)
    seed: int = Field(90_000, ge=0, description="seed of the fixed noise; the same for every run to be compared")
    policy: Literal["live", "old"] = Field("live", description="which policy is evaluated")
    referee: str = Field(
        "auto",
        min_length=1,
        description="independent referee of the held-out videos: auto (the HUD that the conditions were built with), "
        "none, a packaged game's HUD, or a HUD profile file",
    )
    evaluator: Literal["none", "stateplay"] = Field("none", description="the checkout's own evaluators, beside ours")
    evaluator_checkout: Path | None = Field(None, description="the checkout whose `evaluation/` is run; trusted code")


class MonitorConfig(FrozenConfig):
    """Thresholds of the alarms, and what happens when one is crossed."""

    velocity_ratio: float = Field(1.05, gt=0, description="warn at ||v_live||/||v_reference|| from here")
    failed_share: float = Field(0.25, ge=0, le=1, description="alarm when more of a batch's groups failed")
    tied_share: float = Field(0.5, ge=0, le=1, description="warn when more of a batch's groups are tied")
    saturated_share: float = Field(0.5, ge=0, le=1, description="warn when more scores are exactly 0 or 100")
    heldout_drop_points: float = Field(5.0, gt=0, description="alarm when the held-out reward falls this far")
    referee_rise_points: float = Field(2.0, gt=0, description="alarm when the held-out reward rose this far")
    referee_fall_points: float = Field(3.0, gt=0, description="while the held-out referee fell this far")
    motion_ratio: float = Field(0.5, gt=0, lt=1, description="alarm when motion falls below this share of real")
    luma_shift: float = Field(25.0, gt=0, description="alarm when mean luma (0..255) departs this far from real")
    diversity_ratio: float = Field(0.25, gt=0, lt=1, description="warn when candidates lose this much spread")
    pause_on_alarm: bool = Field(False, description="stop with everything saved when an alarm fires (exit 5)")
    detail_every_batches: int = Field(10, ge=1, description="gradient parts and mismatch on one fixed sample")
    signal_every_batches: int = Field(
        0,
        ge=0,
        description="measure the gradient cosine every n batches, 0 is off; needs a gradient per group in CPU memory",
    )


class TrainNftConfig(FrozenConfig):
    """One on-policy training run."""

    experiment: str = Field("nft", pattern=r"^[A-Za-z0-9_.-]+$", description="first part of the run's name")
    world: str = Field("arena", description="`arena` or the path of a world file")
    audit: Path | None = Field(None, description="the passed audit of this world's checkpoint")
    seed: int = Field(0, ge=0, description="run seed: noise, sigmas, shuffles")
    mode: Mode = Field("transition", description="which parameters are trained")
    stage: Literal["a"] = Field("a", description="stage of the three-stage plan")
    stage_conditions: int = Field(2000, ge=1, description="conditions that this stage consumes")
    conditions_per_batch: int = Field(28, ge=1, description="conditions per batch, over all ranks")
    sampling: SamplingConfig = SamplingConfig()
    judge: JudgeConfig = JudgeConfig()
    control: Literal["none", "shuffled_rewards"] = Field(
        "none", description="`shuffled_rewards` permutes each group's scores: the drift control"
    )
    loss: LossConfig = LossConfig()
    anchors: AnchorConfig = AnchorConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    old_policy: OldPolicyConfig = OldPolicyConfig()
    heldout: HeldoutConfig = HeldoutConfig()
    monitors: MonitorConfig = MonitorConfig()
    checkpoint_every_batches: int = Field(1, ge=1)
    keep_checkpoints: int = Field(3, ge=2, description="the last k and the best stay")
    tracker: Literal["none", "tensorboard", "wandb", "swanlab"] = Field("tensorboard")
    encoded: Path | None = Field(None, description="encoded/ store shared by runs; none: below the run")
    threads: int | None = Field(None, ge=1, description="CPU threads of the numerical libraries")
    off_policy: bool = Field(False, description="accept a hand-made batch of another policy (recorded)")

    @model_validator(mode="after")
    def _conditions_fit(self) -> TrainNftConfig:
        if self.stage_conditions < self.conditions_per_batch:
            raise ValueError(
                f"stage_conditions ({self.stage_conditions}) is smaller than conditions_per_batch "
                f"({self.conditions_per_batch}): no batch would ever be full"
            )
        return self
