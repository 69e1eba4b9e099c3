"""Flow-GRPO: the policy-gradient baseline of the study, compact, on the stage's own trainer.

Source: arXiv 2505.05470, the stochastic sampler (its equations 8-9) and the clipped objective (its equation 5). The
flow ODE is replaced by an SDE with the same marginals, so that every step is a Gaussian with a density; a group's
standardised scores are the advantage of all steps of a candidate.

Deliberate differences: the last step draws no noise (on a grid of five steps it would be injected into the clean
latents at sigma 0.56, and the picture breaks), so it has no density and does not train; latent slot 0 is a condition
and outside every density; there is no penalty towards the reference (the study's anchors stand in its place, as for
all other methods); ratios are of mean log densities over the elements, as in the public code.

Shapes: B candidates, S steps, C latent channels, f latent slots, H W latent grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.nft.forward import Noised, without_condition_slot, working_dtype
from stateplay_rl.nft.randomness import DrawKey, normal
from stateplay_rl.nft.schedule import next_sigmas
from stateplay_rl.nft.solvers import VelocityFn, pin_first_slot
from stateplay_rl.stages.train_nft.draws import RealClip, Visit
from stateplay_rl.stages.train_nft.loss_sums import LossSums
from stateplay_rl.stages.train_nft.objective import Objective, RealInputs
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.worlds.base import ConditionBatch, PolicyName, StateSequence, World

LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
SDE_NOISE = "sde_noise"


@dataclass(frozen=True)
class Transition:
    """One step of the sampler as a Gaussian: mean [B, ...] and one deviation for all elements (0: no density)."""

    mean: Tensor
    deviation: float


def transition(x: Tensor, velocity: Tensor, step: int, sigmas: Tensor, noise_level: float) -> Transition:
    """The Euler-Maruyama step from sigmas[step] to the next sigma.

    dx = (v + g^2 / (2 sigma) (x + (1 - sigma) v)) dsigma + g dw, g = a sqrt(sigma / (1 - sigma)). At sigma = 1, where g
    has no bound, the grid's second sigma stands in (1 - sigma), as in the public code. With a = 0, and in the last
    step, it is the Euler step of the ODE.

    Args:
        x: latents [B, ...] at sigmas[step].
        velocity: the policy's velocity there.
        step: 0..S-1.
        sigmas: falling grid [S], float.
        noise_level: a, at least 0.
    """
    dtype = working_dtype(x, velocity)
    grid = sigmas.double()
    sigma, following = float(grid[step]), float(next_sigmas(grid)[step])
    delta = following - sigma
    is_last = step == len(sigmas) - 1
    room = 1 - sigma if sigma < 1 else 1 - float(grid[min(1, len(grid) - 1)])
    g = 0.0 if is_last or noise_level == 0 else noise_level * math.sqrt(sigma / room)
    pull = g * g / (2 * sigma)
    x, velocity = x.to(dtype), velocity.to(dtype)
    mean = x + (velocity + pull * (x + (1 - sigma) * velocity)) * delta
    return Transition(mean, g * math.sqrt(-delta))


def log_density(value: Tensor, step: Transition) -> Tensor:
    """Mean log density per element [B] of `value` under a step's Gaussian, slot 0 left out.

    Raises:
        ValueError: the step draws no noise, so that it has no density.
    """
    if not step.deviation > 0:
        raise ValueError("a step without noise has no density")
    error = without_condition_slot(value.to(step.mean) - step.mean).flatten(1) / step.deviation
    return -0.5 * error.square().mean(dim=1) - math.log(step.deviation) - LOG_ROOT_TWO_PI


@dataclass(frozen=True)
class Trajectory:
    """Latents [B, S + 1, C, f, H, W] from the initial noise to the clean ones, and log densities [B, S - 1]."""

    latents: Tensor
    log_densities: Tensor

    @property
    def clean(self) -> Tensor:
        """Clean latents [B, C, f, H, W]."""
        return self.latents[:, -1]


def sde_trajectory(
    velocity_fn: VelocityFn,
    initial: Tensor,
    first_latent_BC1HW: Tensor,
    sigmas: Tensor,
    noise_level: float,
    draw: Callable[[int], Tensor],
) -> Trajectory:
    """Sample candidates with the SDE and keep every step.

    Args:
        velocity_fn: (latents, sigma_B) -> velocity.
        initial: noise [B, C, f, H, W] at sigma 1.
        first_latent_BC1HW: pinned into slot 0.
        draw: step -> standard normal noise [B, C, f, H, W]; not asked for in the last step.
    """
    pin = pin_first_slot(first_latent_BC1HW)
    x = pin(initial)
    kept, densities = [x], []
    for step in range(len(sigmas)):
        sigma_B = sigmas[step].to(x.device, torch.float32).expand(len(x))
        move = transition(x, velocity_fn(x, sigma_B), step, sigmas, noise_level)
        x = move.mean
        if move.deviation > 0:
            x = move.mean + move.deviation * draw(step).to(x)
            densities.append(log_density(x, move))
        x = pin(x)
        kept.append(x)
    return Trajectory(torch.stack(kept, dim=1), torch.stack(densities, dim=1))


def sample_trajectories(
    world: World,
    conditions: ConditionBatch,
    keys: Sequence[DrawKey],
    initial: Tensor,
    *,
    policy: PolicyName,
    sigmas: Tensor,
    noise_level: float,
) -> Trajectory:
    """Candidates of a world under a policy, one key per row for its SDE noise."""

    def draw(step: int) -> Tensor:
        return torch.stack([normal(replace(key, inner_pass=step), initial.shape[1:]) for key in keys])

    with world.policies.use(policy), torch.inference_mode():
        states = world.states(conditions)
        kept = sde_trajectory(
            lambda x, sigma_B: world.velocity(x, sigma_B, conditions, states).velocity_BCfHW,
            initial.to(world.device),
            conditions.first_latent_BC1HW,
            sigmas,
            noise_level,
            draw,
        )
    # Copied outside inference mode: they become a part of a training graph.
    return Trajectory(kept.latents.clone(), kept.log_densities.clone())


@dataclass(frozen=True)
class PreparedStep:
    """One call's inputs: latents before and after a step, the old policy's log density, and the advantage, all [B]."""

    samples: tuple[Sample, ...]
    visit: Visit
    conditions: ConditionBatch
    sample: Noised
    step: int
    following: Tensor
    old_log_density_B: Tensor
    advantage_B: Tensor
    real: RealInputs | None


def clipped_objective(log_ratio_B: Tensor, advantage_B: Tensor, clip_range: float) -> Tensor:
    """The loss -min(ratio A, clip(ratio, 1 - c, 1 + c) A) per sample [B]."""
    ratio = log_ratio_B.exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.minimum(ratio * advantage_B, clipped * advantage_B)


class FlowGrpoObjective(Objective):
    """The clipped objective over the SDE's steps, in the place of the NFT loss; anchors stay the stage's own.

    The stage's `full_schedule` makes a call per level of the grid: here a level is a step of the trajectory. Advantages
    are read back from r, which is 1/2 + A / (2 advantage_clip).

    Args:
        trajectories: (condition id, candidate) -> its row of the batch's trajectory, filled by the rollout.
        clip_range: c of the ratio.
    """

    def __init__(
        self,
        world: World,
        config: TrainNftConfig,
        conditions_of: Callable[[Sequence[str]], ConditionBatch],
        real_of: Callable[[str], RealClip | None],
        trajectories: Mapping[tuple[str, int], Trajectory],
        *,
        noise_level: float,
        clip_range: float,
    ) -> None:
        super().__init__(world, config, conditions_of, lambda s: self._row(s).latents[0, -1], real_of)
        if not config.loss.full_schedule:
            raise ValueError("Flow-GRPO trains every step of a trajectory: set loss.full_schedule")
        self.trajectories = trajectories
        self.noise_level = noise_level
        self.clip_range = clip_range
        self.clipped, self.visited = 0, 0

    @property
    def visits_per_sample(self) -> int:
        """Steps that have a density."""
        return len(self.sigmas) - 1

    def draw_ahead(self, samples: Sequence[Sample], visit: Visit, sigma_index: int | None) -> None:
        """Nothing: latents and steps are stored."""

    def _row(self, sample: Sample) -> Trajectory:
        return self.trajectories[sample.condition_id, sample.candidate]

    @torch.no_grad()
    def prepare(self, samples: Sequence[Sample], visit: Visit, sigma_index: int | None) -> PreparedStep:  # type: ignore[override]
        """Stored latents of a step; nothing is drawn and no policy is evaluated."""
        assert sigma_index is not None, "full_schedule names the step"
        conditions = self._conditions_of([s.condition_id for s in samples])
        rows = [self._row(s) for s in samples]
        before, following = (torch.cat([row.latents[:, sigma_index + k] for row in rows]) for k in (0, 1))
        sigma_B = self.sigmas[sigma_index].to(before.device).expand(len(samples))
        sample = Noised(before, before, before, sigma_B)
        scale = 2 * self.config.loss.advantage_clip
        advantage_B = torch.tensor([scale * (s.r - 0.5) for s in samples], dtype=torch.float32, device=before.device)
        old_B = torch.cat([row.log_densities[:, sigma_index] for row in rows])
        # Anchors once a step of the optimizer, at the weight that a mean over all calls asks for.
        visit = replace(
            visit,
            anchors=visit.anchors and sigma_index == 0,
            anchor_scale=visit.anchor_scale * self.visits_per_sample,
        )
        real = self._real_inputs(samples, visit, conditions) if visit.anchors else None
        return PreparedStep(tuple(samples), visit, conditions, sample, sigma_index, following, old_B, advantage_B, real)

    def _policy(self, prepared: PreparedStep, states: StateSequence, sums: LossSums) -> dict[str, Tensor]:  # type: ignore[override]
        """The clipped objective, named `nft` in the logs: it takes the place of the policy loss."""
        sample = prepared.sample
        velocity = self.world.velocity(sample.x_sigma, sample.sigma_B, prepared.conditions, states).velocity_BCfHW
        move = transition(sample.x_sigma, velocity, prepared.step, self.sigmas, self.noise_level)
        log_ratio_B = log_density(prepared.following, move) - prepared.old_log_density_B
        loss_B = clipped_objective(log_ratio_B, prepared.advantage_B, self.clip_range)
        self.clipped += int((log_ratio_B.detach().exp() - 1).abs().gt(self.clip_range).sum())
        self.visited += len(loss_B)
        sums.add("nft", loss_B)
        return {"nft": loss_B}
