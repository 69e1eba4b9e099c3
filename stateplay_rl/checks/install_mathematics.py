"""The part of `verify install` that is mathematics and data preparation: hand-derived values, no files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from stateplay_rl.checks.lines import CheckFunction, require
from stateplay_rl.nft import (
    advantage,
    flow_matching,
    forward,
    loss,
    old_policy,
    randomness,
    schedule,
    solvers,
)


def _close(name: str, got: torch.Tensor, wanted: Sequence[float], tolerance: float = 1e-12) -> None:
    expected = torch.tensor(wanted, dtype=torch.float64)
    values = got.detach().double().flatten()
    require(
        values.shape == expected.shape and bool(((values - expected).abs() <= tolerance).all()),
        f"{name}: computed {values.tolist()}, must be {list(wanted)}",
    )


def check_loss() -> str:
    """Two elements by hand, after slot 0: see the numbers beside.

    x0 = (0, 1), eps = (1, -1), sigma 1/2 -> x_s = (1/2, 0); v_old = (1, 0), v_live = (3, 1), b = 1 ->
    v_pos = (3, 1), v_neg = (-1, -1); e_pos = (-1, -3/2), e_neg = (1, -1/2); d = 5/4 and 3/4;
    L_pos = 1.625/1.25 = 1.3, L_neg = 0.625/0.75 = 5/6; r = 3/4, clip 5: loss = 5 (0.975 + 5/24) = 71/12;
    gradient 5 (3/4 (0.4, 0.6) + 1/4 (2/3, -1/3)) = (7/3, 11/6).
    """

    def slots(*values: float) -> torch.Tensor:
        # A slot 0 of 9s: it must not be seen.
        return torch.tensor([9.0, *values], dtype=torch.float64).reshape(1, 1, 3, 1, 1)

    sample = forward.noised(slots(0, 1), slots(1, -1), torch.tensor([0.5]).double(), slots(0, 0)[:, :, :1])
    v_live = slots(3, 1).requires_grad_()
    result = loss.nft_loss(
        sample,
        v_live,
        slots(1, 0),
        torch.tensor([0.75]),
        beta_nft=1.0,
        advantage_clip=5.0,
        has_condition_slot=True,
    )
    _close("L_pos", result.pos, [1.3])
    _close("L_neg", result.neg, [5 / 6])
    _close("loss", result.loss_per_sample, [71 / 12])
    _close("gradient", torch.autograd.grad(result.mean, v_live)[0], [0.0, 7 / 3, 11 / 6])
    anchor = flow_matching.flow_matching_loss(sample, v_live, torch.tensor([0.5]).double(), has_condition_slot=True)
    _close("flow-matching loss", anchor, [0.5 * (4 + 9) / 2])
    return "NFT loss, its gradient and the flow-matching anchor equal their hand-derived values"


def check_advantage() -> str:
    """Scores 40 60 40 60 | 80 100 80 100: group deviation 10, batch deviation sqrt(500); a tie is 1/2."""
    scores_GK = torch.tensor([[40.0, 60, 40, 60], [80, 100, 80, 100]])
    of_group = advantage.optimality(scores_GK, advantage_clip=2.0, std_floor_points=5.0, deviation_of="group")
    _close("r by group deviation", of_group.r_GK, [0.25, 0.75, 0.25, 0.75] * 2)
    of_batch = advantage.optimality(scores_GK, advantage_clip=2.0, std_floor_points=5.0)
    far = 5 / (2 * 500**0.5)
    _close("r by batch deviation", of_batch.r_GK, [0.5 - far, 0.5 + far, 0.5 - far, 0.5 + far] * 2)
    tied = advantage.optimality(torch.full((1, 3), 0.1), advantage_clip=5.0, std_floor_points=0.0)
    require(tied.r_GK.tolist() == [[0.5] * 3], f"equal scores give r {tied.r_GK.tolist()}, must be 0.5")
    scores: list[list[float | None]] = [
        [90.0, None, 50.0, 60.0],
        [0.0, 49.0, 10.0, 20.0],
        [55.0] * 4,
        [90.0, 20.0, 50.0, 60.0],
    ]
    reasons = advantage.gate(scores, "guard", candidates=4).reasons
    require(reasons == ("failed", "all_bad", "tied", None), f"gate gives {reasons}")
    return "optimality by group and batch deviation, ties and gates are right"


def check_schedule() -> str:
    """Four steps are 1, 15/16, 5/6, 5/8; the last of thirty is 5/34; Euler along a straight path is exact."""
    _close("4-step grid", schedule.sampling_sigmas(4), [1, 15 / 16, 5 / 6, 5 / 8], 1e-6)
    _close("last sigma of 30", schedule.sampling_sigmas(30)[-1:], [5 / 34], 1e-6)
    grid = schedule.TrainingGrid.build()
    _close("mean training weight", grid.weights.double().mean().reshape(1), [1.0], 1e-6)
    _close("training weight at sigma 1", grid.weights[:1], [0.0])
    x0, eps = torch.tensor([[2.0]]), torch.tensor([[-1.0]])
    end = solvers.solve(solvers.Euler, lambda x, _: eps - x0, eps, schedule.sampling_sigmas(30))
    _close("Euler end", end, [2.0], 1e-6)
    return "sampling grid, training grid and Euler path are right"


def check_old_policy() -> str:
    """eta = min(0.001 steps, 0.5) weighs old; the update is in float32 and in place."""
    for steps, weight in ((0, 0.0), (8, 0.008), (499, 0.499), (500, 0.5), (10_000, 0.5)):
        found = old_policy.weight_on_old(steps)
        require(found == weight, f"weight on old after {steps} steps is {found}, must be {weight}")
    old, live = {"w": torch.tensor([8.0])}, {"w": torch.tensor([4.0])}
    old_policy.update_(old, live, 0.25)
    _close("0.25 * 8 + 0.75 * 4", old["w"], [5.0])
    _close("live after the update", live["w"], [4.0])
    return "decay and update of the old policy are right"


def check_randomness() -> str:
    """A key's seed is the documented hash, draws repeat, and the global generator is untouched."""
    key = randomness.DrawKey(7, "eps", 3, 1, "abc", 2)
    require(key.seed() == 880630680736443103, f"the seed of a key is {key.seed()}: runs would not repeat")
    state = torch.get_rng_state()
    first = randomness.normal(key, (8,))
    require(torch.equal(first, randomness.normal(key, (8,))), "two draws of one key differ")
    require(torch.equal(state, torch.get_rng_state()), "a keyed draw moved the global generator")
    return "keyed draws repeat and leave the global generator alone"


def check_preparation() -> str:
    """Windows of held buttons, bins of 100 rows over 25 slots, a cleaned prompt, usable frames."""
    from stateplay_rl.worlds import preparation

    raw_RK = np.zeros((100, 11))
    raw_RK[20, 3] = raw_RK[25, 4] = 1
    held = preparation.hold_actions(raw_RK, 10)
    require(
        bool(held.held_RK[20:30, 3].all()) and float(held.held_RK.sum()) == 10,
        "row 0 of a window is not held over it",
    )
    require(held.dropped_presses == 1, f"{held.dropped_presses} dropped presses, must be 1")
    bins = preparation.bin_actions(held.held_RK, 25)
    require(bins[:, 3].nonzero()[0].tolist() == [5, 6, 7], f"pressed bins {bins[:, 3].nonzero()[0].tolist()}")
    require(preparation.clean_prompt("NPC:  a\n\tb ") == "NPC: a b", "a prompt is not cleaned as in training")
    require(preparation.usable_frames(100) == 97, "100 frames must be cut to 97")
    return "held buttons, bins, prompt and frame count are prepared as in training"


MATHEMATICS: tuple[tuple[str, CheckFunction], ...] = (
    ("loss", check_loss),
    ("advantage", check_advantage),
    ("schedule", check_schedule),
    ("old_policy", check_old_policy),
    ("randomness", check_randomness),
    ("preparation", check_preparation),
)
