"""Settings of `sprl train-nft`. Defaults are the real world's starting points; arena has a preset of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.config.rollout import Mode, SamplingConfig
from stateplay_rl.config.score import HOW_NOT_WHAT, JudgeConfig


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


class EvaluationAverageConfig(FrozenConfig):
    """average <- decay average + (1 - decay) live after each batch: a set of its own, for evaluation only."""

    decay: float = Field(0.0, ge=0, lt=1, description="0 is off; 0.9 averages over about ten batches")


class HeldoutConfig(FrozenConfig):
    """Evaluation on conditions that no training sees, with fixed seeds."""

    conditions: int = Field(0, ge=0, description="held-out conditions per evaluation; 0 is off")
    samples: int = Field(2, ge=1, description="candidates per condition")
    every_batches: int = Field(10, ge=1)
    seed: int = Field(90_000, ge=0, description="seed of the fixed noise; the same for every run to be compared")
    policy: Literal["live", "old", "average"] = Field("live", description="which policy is evaluated")
    referee: str = Field(
        "auto",
        min_length=1,
        description="independent referee of the held-out videos: auto (the HUD that the conditions were built with), "
        "none, a packaged game's HUD, or a HUD profile file",
    )
    actions: Literal["auto", "none"] = Field(
        "auto",
        description="do commanded moves happen? auto: arena's engine, else probes calibrated on real clips; none",
    )
    action_clips: int = Field(100, ge=1, description="real clips of the training pool that calibrate these probes")
    evaluator: Literal["none", "stateplay"] = Field("none", description="the checkout's own evaluators, beside ours")
    evaluator_checkout: Path | None = Field(None, description="the checkout whose `evaluation/` is run; trusted code")


class JudgingConfig(FrozenConfig):
    """How a batch is judged. Nothing here changes a score."""

    in_flight: int | None = Field(
        None,
        ge=1,
        description="groups being judged at once, over all ranks; none: 28 for `openai`, 1 a rank for all others",
    )
    outage_hours: float = Field(
        24.0,
        ge=0,
        description="how long a plug-in that says it is down is waited for; then the run stops, to be resumed. The "
        "judge `openai` waits by judge.requests.outage_seconds",
    )
    retry_seconds: float = Field(30.0, gt=0, description="first wait for such a plug-in; doubled up to 10 min")


class AuditsConfig(FrozenConfig):
    """Stage C: batches that the API judges too, beside the student whose scores train."""

    judge: JudgeConfig | None = Field(None, description="the auditing judge; none: no audits (not in production)")
    first_conditions: int = Field(56, ge=0, description="conditions at the start of the stage that are audited")
    every_batches: int = Field(100, ge=1, description="later audits: every n batches of the stage")
    groups: int = Field(28, ge=1, description="groups of a later audit, at least; whole batches are audited")


class MonitorConfig(FrozenConfig):
    """Thresholds of the alarms, and what happens when one is crossed."""

    velocity_ratio: float = Field(1.05, gt=0, description="warn at ||v_live||/||v_reference|| from here")
    failed_share: float = Field(0.25, ge=0, le=1, description="alarm when more of a batch's groups failed")
    tied_share: float = Field(0.5, ge=0, le=1, description="warn when more of a batch's groups are tied")
    gated_share: float = Field(0.75, ge=0, le=1, description="alarm when more of a batch's groups do not train")
    saturated_share: float = Field(0.5, ge=0, le=1, description="warn when more scores are exactly 0 or 100")
    reward_drop_points: float = Field(15.0, gt=0, description="warn when the reward falls this far below its best")
    heldout_drop_points: float = Field(5.0, gt=0, description="alarm when the held-out reward falls this far")
    referee_drop_points: float = Field(
        5.0, gt=0, description="alarm when the held-out referee falls this far while the judge's reward does not"
    )
    narrow_r: float = Field(0.05, ge=0, le=0.5, description="warn when every r lies this near to 1/2")
    loss_ratio: float = Field(3.0, gt=1, description="warn when L_pos or L_neg exceeds the first batch's this often")
    sigma_ratio: float = Field(10.0, gt=1, description="warn when the loss by sigma third is this uneven")
    gradient_ratio: float = Field(
        20.0, gt=1, description="warn when a group's gradient norm exceeds the first batch's this often"
    )
    zero_gradient_share: float = Field(0.9, ge=0, le=1, description="alarm when more gradient entries are exactly 0")
    update_ratio: float = Field(0.05, gt=0, description="warn when a step moves a group's weights by this share")
    mismatch: float = Field(0.05, gt=0, description="warn when trainer and sampler disagree on v by this share")
    motion_ratio: float = Field(0.5, gt=0, lt=1, description="alarm when motion falls below this share of real")
    luma_shift: float = Field(25.0, gt=0, description="alarm when mean luma (0..255) departs this far from real")
    luma_growth: float = Field(
        5.0, gt=0, description="alarm when luma has gone this much further from the real clips than in the first batch"
    )
    saturation_shift: float = Field(30.0, gt=0, description="alarm when mean saturation (0..255) departs this far")
    diversity_ratio: float = Field(0.25, gt=0, lt=1, description="warn when candidates lose this much spread")
    signal_cosine: float = Field(0.05, ge=-1, le=1, description="warn when the gradient cosine falls below this")
    memory_share: float = Field(0.95, gt=0, le=1, description="warn when a GPU's peak memory passes this share")
    batch_seconds_ratio: float = Field(3.0, gt=1, description="warn when a batch takes this often the first one's time")
    pause_on_alarm: bool = Field(False, description="stop with everything saved when an alarm fires (exit 5)")
    detail_every_batches: int = Field(10, ge=1, description="gradient parts and mismatch on one fixed sample a rank")
    signal_every_batches: int = Field(
        0,
        ge=0,
        description="measure the gradient cosine every n batches, 0 is off; needs a gradient per group in CPU memory",
    )


class ParallelConfig(FrozenConfig):
    """How several processes work together; see docs/distributed.md."""

    strategy: Literal["replicated", "sharded"] = Field(
        "replicated",
        description="`replicated`: a whole model a rank; `sharded`: frozen blocks spread over the ranks (FSDP2)",
    )
    timeout_minutes: float = Field(30.0, gt=0, description="a rank that does not answer for so long stops the others")
    hash_every_steps: int = Field(50, ge=1, description="ranks compare hashes of their weights every k optimizer steps")


class PlanConfig(FrozenConfig):
    """What `--dry-run` reckons with; nothing here changes a run."""

    gpus: int | None = Field(None, ge=1, description="number of GPUs; none: the processes of this launch")
    gpu: Literal["l20", "h200"] = Field(
        "l20", description="speed that days are reckoned with; arena is reckoned on CPU cores"
    )


class TrainNftConfig(FrozenConfig):
    """One on-policy training run, or one stage of it."""

    resume_may_change: ClassVar[frozenset[str]] = HOW_NOT_WHAT | frozenset(
        {
            "judging",
            "parallel",
            "plan",
            "monitors.pause_on_alarm",
            "keep_checkpoints",
            "checkpoint_every_batches",
            "tracker",
            "encoded",
        }
    )

    experiment: str = Field("nft", pattern=r"^[A-Za-z0-9_.-]+$", description="first part of the run's name")
    world: str = Field("arena", description="`arena` or the path of a world file")
    audit: Path | None = Field(None, description="the passed audit of this world's checkpoint")
    seed: int = Field(0, ge=0, description="run seed: noise, sigmas, shuffles")
    mode: Mode = Field("transition", description="which parameters are trained")
    run_mode: Literal["standard", "production"] = Field(
        "standard", description="`production` (the long stages) refuses without a passed preflight"
    )
    preflight: Path | None = Field(None, description="verify-<utc>/ of `sprl verify preflight` for this config")
    stage: Literal["a", "c"] = Field("a", description="stage of the three-stage plan")
    stage_conditions: int = Field(2000, ge=1, description="conditions that stage A consumes before it is extended")
    extend: int | None = Field(
        None, ge=1, description="stage A: add so many conditions to a finished run; the plan's step is 280"
    )
    stage_a_limit: int = Field(4000, ge=1, description="conditions that stage A may grow to (--extend)")
    stage_c_conditions: int | None = Field(None, ge=1, description="conditions of stage C; none: all that are left")
    conditions_per_batch: int = Field(28, ge=1, description="conditions per batch, over all ranks")
    reward_model: Path | None = Field(None, description="stage C: reward_model/ whose gate the judge passed")
    force_without_gate: bool = Field(
        False, description="stage C without a passed gate: at most 10 batches, and the run is marked `smoke`"
    )
    sampling: SamplingConfig = SamplingConfig()
    judge: JudgeConfig = JudgeConfig()
    judging: JudgingConfig = JudgingConfig()
    audits: AuditsConfig = AuditsConfig()
    referee: Literal["auto", "off"] = Field(
        "auto", description="`auto`: where the world has a referee, it is measured and never trained on"
    )
    heldout_requests: int = Field(
        0, ge=0, description="requests that held-out evaluations may send to an API judge; 0: none"
    )
    control: Literal["none", "shuffled_rewards"] = Field(
        "none", description="`shuffled_rewards` permutes each group's scores: the drift control"
    )
    loss: LossConfig = LossConfig()
    anchors: AnchorConfig = AnchorConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    old_policy: OldPolicyConfig = OldPolicyConfig()
    evaluation_average: EvaluationAverageConfig = EvaluationAverageConfig()
    heldout: HeldoutConfig = HeldoutConfig()
    monitors: MonitorConfig = MonitorConfig()
    parallel: ParallelConfig = ParallelConfig()
    plan: PlanConfig = PlanConfig()
    checkpoint_every_batches: int = Field(1, ge=1)
    keep_checkpoints: int = Field(3, ge=2, description="the last k and the best stay")
    tracker: Literal["none", "tensorboard", "wandb", "swanlab"] = Field("tensorboard")
    encoded: Path | None = Field(None, description="encoded/ store shared by runs; none: below the run")
    threads: int | None = Field(None, ge=1, description="CPU threads of the numerical libraries")
    off_policy: bool = Field(False, description="accept a hand-made batch of another policy (recorded)")

    @model_validator(mode="before")
    @classmethod
    def _one_meaning_of_mode(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("mode") in ("production", "standard"):
            raise ValueError(
                f"`mode` names the trained parameters ({', '.join(get_args(Mode))}); write run_mode: {values['mode']}"
            )
        return values

    @model_validator(mode="after")
    def _settings_fit(self) -> TrainNftConfig:
        if self.stage == "a" and self.stage_conditions < self.conditions_per_batch:
            raise ValueError(
                f"stage_conditions ({self.stage_conditions}) is smaller than conditions_per_batch "
                f"({self.conditions_per_batch}): no batch would ever be full"
            )
        if self.heldout.policy == "average" and not self.evaluation_average.decay:
            raise ValueError("heldout.policy is `average`, but evaluation_average.decay is 0: there is no average")
        if self.parallel.strategy == "sharded" and self.sampling.cache == "firstblock":
            raise ValueError("sampling.cache firstblock skips blocks on one rank that sharded ranks must run together")
        if self.stage == "c" and self.extend is not None:
            raise ValueError("extend adds conditions to stage A")
        if self.stage == "a" and self.force_without_gate:
            raise ValueError("force_without_gate belongs to stage C")
        return self

    @property
    def gated_reward_model(self) -> Path | None:
        """The directory whose gate stage C asks for: as given, else that of the judge `student`."""
        own = self.judge.model_dump().get("reward_model")
        return self.reward_model or (None if own is None else Path(own))

    @property
    def uses_api(self) -> bool:
        """Whether the training judge sends requests that cost money."""
        return bool(self.judge.paid)

    @property
    def uses_clips(self) -> bool:
        """Whether training reads the conditions' real clips."""
        return bool(self.anchors.fm_real or self.anchors.transition_real)
