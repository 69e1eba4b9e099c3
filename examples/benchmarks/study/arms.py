"""What the study runs: methods with their tuning grids, arms, and the sizes of the full and of the short form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from stateplay_rl.config.base import load_config
from stateplay_rl.config.train_nft import TrainNftConfig

ARENA_CONFIG = Path(__file__).resolve().parents[2] / "configs" / "arena.yaml"

Kind = Literal["base", "nft", "rejection", "sft", "flow_grpo"]
Purpose = Literal["time", "tune", "main", "judge"]
TRAINING_JUDGE = "referee"


@dataclass(frozen=True)
class Setting:
    """One point of a tuning grid: overrides of the run's config, and Flow-GRPO's noise level."""

    overrides: Mapping[str, Any] = field(default_factory=dict)
    noise_level: float = 0.0


@dataclass(frozen=True)
class Method:
    """A way of training.

    Args:
        kind: which objective.
        overrides: what differs from arena's own settings of train-nft, whatever the tuning says.
        grid: settings to choose from; the first is used where nothing was tuned.
        tuned_as: another method whose choice is taken over; None: its own.
        clips: real clips of anchors and supervised training: the true engine's, or the base model's mixture.
        length: which of the scale's budgets it runs for.
    """

    kind: Kind
    overrides: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[Setting, ...] = (Setting(),)
    tuned_as: str | None = None
    clips: Literal["true", "mixture"] = "true"
    length: Literal["usual", "middle", "long"] = "usual"


def _rates(*rates: float) -> tuple[Setting, ...]:
    return tuple(Setting({"optimizer.learning_rate_full": rate}) for rate in rates)


def _pairs(*pairs: tuple[float, float]) -> tuple[Setting, ...]:
    return tuple(
        Setting({"optimizer.learning_rate_transition": module, "optimizer.learning_rate_coupling": lora})
        for module, lora in pairs
    )


_NO_ANCHORS = {"anchors.fm_real": 0.0, "anchors.transition_real": 0.0}
_ON_POLICY = {"old_policy.slope": 0.0}
_SUPERVISED = {"anchors.fm_real": 1.0, "anchors.transition_real": 0.01, "anchors.anchor_every": 1, **_ON_POLICY}
_GRPO = {"loss.full_schedule": True, "loss.deviation": "group", **_ON_POLICY}
_GRPO_GRID = (
    *(
        Setting({"optimizer.learning_rate_full": rate, **_NO_ANCHORS}, noise)
        for noise in (0.7, 0.4)
        for rate in (1e-4, 3e-5, 3e-4)
    ),
    Setting({"optimizer.learning_rate_full": 1e-4}, 0.7),
)

METHODS: Mapping[str, Method] = {
    "base": Method("base"),
    "nft": Method("nft", grid=_rates(1e-4, 3e-5, 2e-4)),
    "nft_guard": Method("nft", {"loss.gating": "guard"}, grid=_rates(1e-4, 3e-5, 2e-4)),
    "nft_joint": Method("nft", {"mode": "joint"}, grid=_pairs((3e-4, 1e-3), (1e-4, 3e-4), (1e-3, 3e-3))),
    "rejection": Method("rejection", _ON_POLICY, grid=_rates(1e-4, 3e-5, 3e-4)),
    "sft_mixture": Method("sft", _SUPERVISED, grid=_rates(1e-4, 3e-5, 3e-4), clips="mixture"),
    "sft_true": Method("sft", _SUPERVISED, grid=_rates(1e-4, 3e-5, 3e-4)),
    "shuffled": Method("nft", {"control": "shuffled_rewards"}, tuned_as="nft"),
    "flow_grpo": Method("flow_grpo", _GRPO, grid=_GRPO_GRID, length="long"),
    # Without anchors the grid's best mean (3e-4, noise 0.7) was falling when its tuning ended; this one ended highest.
    "flow_grpo_no_anchor": Method("flow_grpo", _GRPO, grid=(_GRPO_GRID[3],), length="middle"),
    "nft_no_anchor": Method("nft", _NO_ANCHORS, tuned_as="nft"),
    "nft_group8": Method("nft", {"sampling.candidates": 8}, tuned_as="nft"),
    "nft_beta01": Method("nft", {"loss.beta_nft": 0.1}, tuned_as="nft"),
    "nft_full_schedule": Method("nft", {"loss.full_schedule": True}, tuned_as="nft"),
    "nft_eta_half": Method("nft", {"old_policy.slope": 1.0, "old_policy.maximum": 0.5}, tuned_as="nft"),
    "nft_eta_09": Method("nft", {"old_policy.slope": 1.0, "old_policy.maximum": 0.9}, tuned_as="nft"),
    "nft_group_deviation": Method("nft", {"loss.deviation": "group"}, tuned_as="nft"),
    "nft_own_noise": Method("nft", {"loss.shared_group_noise": False}, tuned_as="nft"),
    "nft_real_default": Method("nft", {"mode": "transition"}),
    "nft_long": Method("nft", tuned_as="nft", length="long"),
    "rejection_no_anchor": Method("rejection", {**_ON_POLICY, **_NO_ANCHORS}, tuned_as="rejection"),
    # The tuned rates of `nft_joint` lie at the edge of its grid.
    "nft_joint_higher": Method("nft", {"mode": "joint"}, grid=_pairs((3e-3, 1e-2))),
    "arena_default": Method("nft"),
    "arena_group": Method("nft", {"loss.deviation": "group"}),
}

MAIN = ("flow_grpo", "nft", "shuffled", "sft_mixture", "rejection")
"""Over all seeds, the most important first."""
EXTRA = (
    "nft_guard",
    "nft_joint",
    "sft_true",
    "nft_no_anchor",
    "flow_grpo_no_anchor",
    "arena_group",
    "arena_default",
    "nft_group_deviation",
)
"""Over all seeds, after the judges. `arena_default` is configs/arena.yaml as it stands, whatever the tuning says."""
ABLATIONS = (
    "nft_long",
    "nft_full_schedule",
    "nft_beta01",
    "nft_own_noise",
    "nft_group8",
    "nft_eta_half",
    "nft_eta_09",
    "nft_real_default",
    "rejection_no_anchor",
    "nft_joint_higher",
)
"""One seed each."""
TUNED = ("flow_grpo", "nft", "nft_joint", "rejection", "sft_mixture", "sft_true", "nft_guard")
TIMED = ("flow_grpo", "nft", "nft_full_schedule", "rejection", "nft_joint", "sft_true")
TIMED_BATCHES = 5
JUDGED = ("bright", "bright_half", "noisy", "position")


@dataclass(frozen=True)
class Scale:
    """Sizes of one form of the study.

    Args:
        seeds: training seeds, each with training clips of its own.
        conditions: conditions a batch; times 4 candidates is the budget of a batch (groups of 8 take half as many).
        batches, middle_batches, long_batches: lengths of an arm.
        tune_batches: length of a tuning arm; 0: nothing is tuned.
        heldout: held-out conditions of the reported arms, `samples` videos each.
        tune_heldout: those of the tuning arms, other clips.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    conditions: int = 16
    batches: int = 16
    middle_batches: int = 24
    long_batches: int = 40
    tune_batches: int = 10
    heldout: int = 96
    tune_heldout: int = 64
    samples: int = 2
    main: tuple[str, ...] = MAIN
    extra: tuple[str, ...] = EXTRA
    ablations: tuple[str, ...] = ABLATIONS
    judges: tuple[str, ...] = JUDGED
    timed: tuple[str, ...] = TIMED

    def evaluate_at(self, batches: int) -> tuple[int, ...]:
        """Batches done when the held-out clips are looked at: densely at first, then every fourth."""
        dense = [b for b in (0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16) if b <= batches]
        return tuple(sorted({*dense, *range(20, batches + 1, 4), batches}))


FULL = Scale()
SHORT = Scale(
    seeds=(0,),
    conditions=8,
    batches=4,
    middle_batches=4,
    long_batches=4,
    tune_batches=0,
    heldout=16,
    main=("nft", "shuffled", "sft_mixture", "flow_grpo"),
    extra=(),
    ablations=(),
    judges=(),
    timed=(),
)
ANCHORLESS = Scale(
    conditions=8,
    batches=6,
    middle_batches=6,
    long_batches=6,
    tune_batches=0,
    heldout=24,
    main=("flow_grpo_no_anchor", "nft_no_anchor"),
    extra=(),
    ablations=(),
    judges=(),
    timed=(),
)
"""NFT against Flow-GRPO without anchors, small enough for a CPU."""
VARIANTS = replace(ANCHORLESS, main=("nft", "nft_full_schedule", "nft_group_deviation"))
"""Variants of NFT at the same small size."""

TRAIN_CLIPS, HELDOUT_CLIPS = 7000, 7900
"""Clip seeds of the reported arms: training clips of seed s are 7000 + s."""
TUNE_TRAIN_CLIPS, TUNE_HELDOUT_CLIPS = 6000, 6900


@dataclass(frozen=True)
class Arm:
    """One training run."""

    purpose: Purpose
    method: str
    seed: int
    setting: Setting
    batches: int
    evaluate_at: tuple[int, ...]
    judge: str = TRAINING_JUDGE
    number: int = 0

    @property
    def name(self) -> str:
        """Names its result file."""
        last = f"g{self.number}" if self.purpose == "tune" else f"s{self.seed}"
        what = self.judge if self.purpose == "judge" else self.method
        return f"{self.purpose}-{what}-{last}"

    @property
    def train_clips(self) -> int:
        """Clip seed of the training conditions."""
        return TUNE_TRAIN_CLIPS if self.purpose == "tune" else TRAIN_CLIPS + self.seed

    @property
    def heldout_clips(self) -> int:
        """Clip seed of the held-out conditions."""
        return TUNE_HELDOUT_CLIPS if self.purpose == "tune" else HELDOUT_CLIPS


def config_of(arm: Arm, scale: Scale, *, samples_per_call: int) -> TrainNftConfig:
    """The arm's settings of train-nft: arena's, the method's, the tuned ones.

    Args:
        samples_per_call: videos per forward in training; decides the last bits only.
    """
    method = METHODS[arm.method]
    config = load_config(TrainNftConfig, ARENA_CONFIG, flags={**method.overrides, **arm.setting.overrides})
    candidates = scale.conditions * 4
    conditions = candidates // config.sampling.candidates
    optimizer = config.optimizer.model_copy(
        update={"samples_per_step": candidates, "samples_per_call": samples_per_call}
    )
    return config.model_copy(
        update={
            "seed": arm.seed,
            "conditions_per_batch": conditions,
            "stage_conditions": max(conditions * arm.batches, conditions),
            "optimizer": optimizer,
        }
    )


def timing_arms(scale: Scale) -> list[Arm]:
    """A batch to warm up and four more of every method: over these, anchors take part in a quarter of the steps."""
    return [Arm("time", name, 0, METHODS[name].grid[0], TIMED_BATCHES, ()) for name in scale.timed]


def tuning_arms(scale: Scale) -> list[Arm]:
    """Every setting of every grid, on clips that no reported arm sees."""
    if not scale.tune_batches:
        return []
    last = scale.tune_batches
    at = tuple(sorted({max(last - 4, 1), max(last - 2, 1), last}))
    return [
        Arm("tune", name, 100, setting, last, at, number=number)
        for name in TUNED
        for number, setting in enumerate(METHODS[name].grid)
    ]


def study_arms(scale: Scale, chosen: Mapping[str, int]) -> list[Arm]:
    """All reported arms, the most important first.

    Args:
        chosen: method -> number of its setting; methods that are not in it use their grid's first.
    """

    def arm(name: str, seed: int, purpose: Purpose = "main", judge: str = TRAINING_JUDGE) -> Arm:
        method = METHODS[name]
        tuned = method.tuned_as or name
        setting = METHODS[tuned].grid[chosen.get(tuned, 0)]
        length = "long" if purpose == "judge" else method.length
        batches = {"usual": scale.batches, "middle": scale.middle_batches, "long": scale.long_batches}[length]
        return Arm(purpose, name, seed, setting, batches, scale.evaluate_at(batches), judge)

    base = Arm("main", "base", 0, Setting(), 0, (0,))
    main = [arm(name, seed) for name in scale.main for seed in scale.seeds]
    judges = [arm("nft", 0, "judge", judge) for judge in scale.judges]
    extra = [arm(name, seed) for name in scale.extra for seed in scale.seeds]
    return [base, *main, *judges, *extra, *(arm(name, 0) for name in scale.ablations)]
