"""The gradient cosine of a training batch: do disjoint halves of its groups pull the policy the same way?

`sprl verify signal` answers this before a run; here it is followed during one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from stateplay_rl.config.train_nft import AnchorConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.nft.signal import gradient_cosine
from stateplay_rl.stages.group_gradients import NonFiniteGradient, group_gram, usable_groups
from stateplay_rl.stages.train_nft.draws import Visit
from stateplay_rl.stages.train_nft.objective import Objective
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.worlds.base import World

WITHOUT_ANCHORS = AnchorConfig(fm_real=0.0, transition_real=0.0, reference_penalty=0.0)
"""Anchors and the reference penalty pull every group the same way: they would look like agreement."""


def signal_cosine(
    objective: Objective,
    samples: Sequence[Sample],
    parameters: Sequence[nn.Parameter],
    processes: Processes,
    batch: int,
) -> float | None:
    """Mean cosine between the gradients of random halves of a batch's groups; see `nft.signal`.

    Called before the batch's update. All draws are keyed, so the update's are the same with and without it; weights
    and gradients are left as they were.

    Returns:
        The cosine, rank 0's on every rank; None when fewer than two groups pull somewhere, or a gradient is not
        finite (the update then skips the step and names the sample).
    """
    units = usable_groups(samples)
    if len(units) < 2:
        return None
    try:
        with _live_as_old(objective.world):
            gram_NN = group_gram(
                objective.with_anchors(WITHOUT_ANCHORS),
                units,
                parameters,
                processes,
                Visit(batch, 0, anchors=False),
            )
    except NonFiniteGradient:
        return None
    # In a box: `broadcast` takes None for "not rank 0".
    return processes.broadcast([_mean_cosine(gram_NN)])[0]


def _mean_cosine(gram_NN: Tensor) -> float | None:
    """None when fewer than two groups have a gradient, or those of a half cancel: no direction to compare."""
    present_N = gram_NN.diagonal() > 0
    if int(present_N.sum()) < 2:
        return None
    try:
        return gradient_cosine(gram_NN[present_N][:, present_N]).mean
    except ValueError:
        # The Gram matrix is finite and large enough, so a half cancelled: what is watched must not end a run.
        return None


@contextmanager
def _live_as_old(world: World) -> Iterator[None]:
    """live = old inside. From the second batch on they differ, and the way back to old is common to all groups."""
    policies = world.policies
    live = policies.state("live")
    policies.load("live", policies.state("old"))
    try:
        yield
    finally:
        policies.load("live", live)
