"""Settings of `sprl train-rm`: the LoRA student, how it learns, and what it must reach."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.config.judging import ProtocolConfig

Baseline = Literal["constant", "position_only", "class_only", "reference_hidden", "actions_hidden", "untrained"]


class LoraConfig(FrozenConfig):
    """Size of the adapter; its place is fixed: all large Linears of the language model, none of the vision tower."""

    rank: int = Field(16, ge=1, le=256)
    alpha: int = Field(32, ge=1, description="the adapter's output is scaled by alpha / rank")
    dropout: float = Field(0.05, ge=0, lt=1)


class RmOptimizerConfig(FrozenConfig):
    """AdamW over whole groups."""

    learning_rate: float = Field(1e-4, gt=0)
    schedule: Literal["constant", "cosine"] = Field("cosine", description="after the warm-up")
    warm_up_share: float = Field(0.05, ge=0, lt=1, description="share of all steps with a rising rate")
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_gradient_norm: float = Field(1.0, gt=0)
    groups_per_step: int = Field(28, ge=1, description="global; accumulation follows from the number of ranks")
    epochs: int = Field(2, ge=1, le=3, description="the best epoch on the validation split is kept")
    shuffle_labels: bool = Field(
        False, description="another order of the candidates in every epoch; targets follow (needs the stored groups)"
    )


class RmComputeConfig(FrozenConfig):
    """Where and how it is computed."""

    device: str | None = Field(None, description="cpu, cuda or cuda:N; none: a GPU when there is one")
    precision: Literal["auto", "float32", "bfloat16", "nf4"] = Field(
        "auto", description="of the frozen base; auto: float32 on a CPU, bfloat16 on a GPU; nf4: the last resort"
    )
    delta_rule: Literal["auto", "chunked", "triton", "fla"] = Field(
        "auto", description="DeltaNet layers; auto: own Triton kernels on a GPU that has Triton, else plain PyTorch"
    )
    fused: Literal["auto", "triton", "torch"] = Field(
        "auto", description="norms, gates and short convolutions; auto: own Triton kernels on a GPU, else plain PyTorch"
    )
    attention: Literal["default", "cudnn"] = Field("default", description="attention kernels on a GPU")
    gradient_checkpointing: bool = Field(True, description="recompute layers in the backward pass")
    offload_checkpoints: bool = Field(
        False, description="the layers' inputs wait in pinned host memory for the backward pass (12.8 GiB of the 9B)"
    )
    sharding: Literal["none", "fsdp2"] = Field(
        "none", description="fsdp2: the frozen base lies in shares on all ranks; the adapter stays whole"
    )
    feature_cache: Path | None = Field(None, description="folder of cached vision features; none: computed each time")
    threads: int | None = Field(None, ge=1, description="CPU threads of the numerical libraries")


class GateConfig(FrozenConfig):
    """What the student must reach on the test split before stage C may use it."""

    pairwise_agreement: float = Field(
        0.60, ge=0, le=1, description="three-class within-group agreement with the judge, at least"
    )
    parse_failures: float = Field(0.01, ge=0, le=1, description="share of test groups without a valid answer, at most")
    must_beat: tuple[Baseline, ...] = Field(
        ("constant", "position_only", "class_only", "reference_hidden", "actions_hidden"),
        description="baselines and ablations whose agreement the lower bound must exceed; all are reported",
    )
    tie_points: int = Field(0, ge=0, description="two scores this close, rounded to points, are a tie")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="of the bootstrap intervals over clusters")
    resamples: int = Field(2000, ge=100, description="bootstrap resamples")


class TrainRmConfig(FrozenConfig):
    """One training of the student judge."""

    resume_may_change: ClassVar[frozenset[str]] = frozenset(
        {
            "compute.device",
            "compute.feature_cache",
            "compute.offload_checkpoints",
            "compute.threads",
            "checkpoint_every_steps",
        }
    )

    model: str = Field("arena", min_length=1, description="`arena`, or the folder of a Qwen3.5 checkpoint")
    seed: int = Field(0, ge=0, description="adapter's start, order of groups, dropout, bootstrap")
    max_length: int = Field(65536, ge=1, description="tokens of prompt and answer; a longer group is refused")
    protocol: ProtocolConfig | None = Field(
        None, description="what is shown of groups that no request is stored for; none: as their judge's"
    )
    requests: Path | None = Field(None, description="request store of the judge; none: beside the scores or the run")
    reading: Literal["best", "greedy", "expected"] = Field(
        "best", description="how scores are read; best: `expected` if it is better on validation, else `greedy`"
    )
    ablations: bool = Field(True, description="evaluate with the reference hidden, and with the actions hidden")
    lora: LoraConfig = LoraConfig()
    optimizer: RmOptimizerConfig = RmOptimizerConfig()
    compute: RmComputeConfig = RmComputeConfig()
    gate: GateConfig = GateConfig()
    checkpoint_every_steps: int = Field(1, ge=1)
    keep_checkpoints: int = Field(2, ge=2)
