"""Names of training runs carry what matters: rates of the two parameter groups, planned steps, warm-ups."""

from __future__ import annotations

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.stages.train_nft.segments import SegmentPlan


def planned_steps(config: TrainNftConfig, sizes: list[int]) -> int:
    """Optimizer steps of batches of so many conditions, when no group fails or is gated.

    Args:
        config: samples per step, candidates, passes.
        sizes: conditions of each batch.
    """
    per_step, candidates = config.optimizer.samples_per_step, config.sampling.candidates
    return config.optimizer.inner_epochs * sum(-(-size * candidates // per_step) for size in sizes)


def run_name(config: TrainNftConfig, plan: SegmentPlan) -> str:
    """`<experiment>_flr<…>_blr<…>_schedsteps<…>_swarmup<…>_bwarmup<…>`.

    flr and blr are the rates of module B and of the coupling LoRA (mode `full`: one rate for both). Rates are constant,
    so both warm-ups are 0.
    """
    rates = config.optimizer
    first, second = rates.learning_rate_transition, rates.learning_rate_coupling
    if config.mode == "full":
        first = second = rates.learning_rate_full
    steps = planned_steps(config, plan.sizes())
    return f"{config.experiment}_flr{first:g}_blr{second:g}_schedsteps{steps}_swarmup0_bwarmup0"
