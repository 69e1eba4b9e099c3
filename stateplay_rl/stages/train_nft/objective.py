"""The loss of a few videos: NFT, its anchors, and what is logged about them.

Shapes: B videos per call, [B, C, f, H, W] latents. Everything random is keyed by the sample, never by the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stateplay_rl.config.train_nft import AnchorConfig, TrainNftConfig
from stateplay_rl.nft.flow_matching import flow_matching_loss, transition_cross_entropy
from stateplay_rl.nft.forward import Noised, noised, without_condition_slot
from stateplay_rl.nft.loss import NFTLoss, nft_loss, paper_velocity_mse
from stateplay_rl.stages.train_nft.draws import Draws, RealClip, Visit
from stateplay_rl.stages.train_nft.loss_sums import LossSums
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.worlds.base import ConditionBatch, StateSequence, World
from stateplay_rl.worlds.transfer import to_device

CALLS_AT_ONCE = 4
"""A state sequence is some thousand small kernels, which a GPU runs as fast as the host launches them, for one
condition or for four. Each condition more takes the memory of its text keys and values, 0.2 GiB at 5B."""


@dataclass(frozen=True)
class RealInputs:
    """What the anchors of one call need: the rows whose condition has a clip, their noised clips and codes.

    `sample` and `weight_B` are None where the flow-matching anchor has no weight.
    """

    rows: tuple[int, ...]
    sample: Noised | None
    weight_B: Tensor | None
    codes: Tensor


@dataclass(frozen=True)
class Together:
    """Calls whose state sequences are computed at once: their conditions, each once, and every call's rows of them."""

    conditions: ConditionBatch
    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Prepared:
    """One call's inputs, computed without gradient before the live window opens.

    `real` is None without anchors, and where no sample has a clip.
    """

    samples: tuple[Sample, ...]
    visit: Visit
    conditions: ConditionBatch
    sample: Noised
    sigma_thirds: tuple[int, ...]
    v_old: Tensor
    v_reference: Tensor | None
    real: RealInputs | None


class Objective:
    """Computes per-sample losses of one call under the world's live policy.

    Args:
        world: the world whose live policy trains.
        config: the run's settings.
        conditions_of: condition ids -> encoded conditions.
        latents_of: sample -> stored clean latents [C, f, H, W] (bf16 values, float32 tensor).
        real_of: condition id -> its real clip, or None when it has none.
        has_clip: the same without reading the clip; None: ask `real_of`.
    """

    def __init__(
        self,
        world: World,
        config: TrainNftConfig,
        conditions_of: Callable[[Sequence[str]], ConditionBatch],
        latents_of: Callable[[Sample], Tensor],
        real_of: Callable[[str], RealClip | None],
        has_clip: Callable[[str], bool] | None = None,
    ) -> None:
        self.world = world
        self.config = config
        self._conditions_of = conditions_of
        self._latents_of = latents_of
        self._real_of = real_of
        self.has_clip = has_clip or (lambda condition_id: real_of(condition_id) is not None)
        self.draws = Draws(config, world.device, latents_of)
        self.sigmas = self.draws.sigmas
        # Half of the activations at a time, and the state sequences of several calls at once. Not on a CPU, whose
        # results keep their bits, nor where text keys and values are trained, too.
        self.backward_apart = world.device.type == "cuda" and config.mode != "full"
        self.calls_at_once = CALLS_AT_ONCE if self.backward_apart else 1

    def with_anchors(self, anchors: AnchorConfig) -> Objective:
        """The same objective with other anchor weights."""
        config = self.config.model_copy(update={"anchors": anchors})
        return Objective(self.world, config, self._conditions_of, self._latents_of, self._real_of, self.has_clip)

    @property
    def visits_per_sample(self) -> int:
        """Noise levels per sample and pass: one draw, or the whole grid."""
        return len(self.sigmas) if self.config.loss.full_schedule else 1

    def draw_ahead(self, samples: Sequence[Sample], visit: Visit, sigma_index: int | None) -> None:
        """Have a thread draw what the next `prepare` takes from the host; without a GPU nothing."""
        if not self.draws.by_thread:
            return
        self.draws.begin_samples(samples, visit, sigma_index)
        if visit.anchors and self.config.anchors.fm_real:
            rows, clips = self._clips_of(samples)
            if rows:
                self.draws.begin_clips([samples[row] for row in rows], clips, visit)

    def together(self, calls: Sequence[Sequence[Sample]]) -> Together:
        """The conditions of several calls of one length, each once.

        The last is repeated until there are as many as there can be: another number would compile a step anew.
        """
        ids = [[s.condition_id for s in call] for call in calls]
        unique = list(dict.fromkeys(condition_id for call in ids for condition_id in call))
        rows = tuple(tuple(unique.index(condition_id) for condition_id in call) for call in ids)
        room = self.calls_at_once * self.config.optimizer.samples_per_call
        return Together(self._conditions_of([*unique, *[unique[-1]] * (room - len(unique))]), rows)

    @torch.no_grad()
    def prepare(
        self, samples: Sequence[Sample], visit: Visit, sigma_index: int | None, states: StateSequence | None = None
    ) -> Prepared:
        """All that needs no gradient: noised latents and the velocities of old and reference.

        Args:
            sigma_index: index on the sampling grid for the full schedule; None draws one per sample.
            states: of the samples' conditions under old, where they are at hand.
        """
        conditions = self._conditions_of([s.condition_id for s in samples])
        if states is None:
            with self.world.policies.use("old"):
                states = self.world.states(conditions)
        sample, thirds = self._noised(samples, visit, sigma_index, conditions)
        real = self._real_inputs(samples, visit, conditions) if visit.anchors else None
        with self.world.policies.use("old"):
            v_old = self.world.velocity(sample.x_sigma, sample.sigma_B, conditions, states).velocity_BCfHW
        v_ref = self._reference_velocity(sample, conditions)
        return Prepared(tuple(samples), visit, conditions, sample, tuple(thirds), v_old, v_ref, real)

    def losses(self, prepared: Prepared, sums: LossSums) -> Tensor:
        """Weighted loss per sample [B], with gradient; adds its parts to `sums`.

        The caller opens `policies.live_window()` around this and the backward.
        """
        total = torch.stack(list(self.parts(prepared, sums).values())).sum(dim=0)
        sums.add("total", total)
        return total

    def backward(self, prepared: Prepared, sums: LossSums, divisor: int) -> Tensor:
        """Add the gradient of the losses' sum over `divisor` to the parameters; inside the live window.

        Returns:
            Weighted loss per sample, float64 [B], without gradient.
        """
        if not (self.backward_apart and prepared.visit.anchors):
            loss_B = self.losses(prepared, sums).double()
            (loss_B.sum() / divisor).backward()  # type: ignore[no-untyped-call]
            return loss_B.detach()
        states = self.world.states(prepared.conditions)
        leaf = states.leaf()
        total_B = self.backward_to(leaf, prepared, sums, divisor)
        states.backward_from(leaf)
        return total_B

    def backward_to(self, leaf: StateSequence, prepared: Prepared, sums: LossSums, divisor: int) -> Tensor:
        """`backward` as far as the states: `leaf`, of the prepared conditions under live, collects their gradient.

        The policy's part is done and its activations are gone before the anchors' forward.
        """
        total_B = torch.zeros(len(prepared.samples), device=self.world.device)
        for part in (self._policy, self._anchors) if prepared.visit.anchors else (self._policy,):
            losses = part(prepared, leaf, sums)
            if losses:
                loss_B = torch.stack(list(losses.values())).sum(dim=0)
                (loss_B.double().sum() / divisor).backward()  # type: ignore[no-untyped-call]
                total_B = total_B + loss_B.detach()
        sums.add("total", total_B)
        return total_B.double()

    def parts(self, prepared: Prepared, sums: LossSums) -> dict[str, Tensor]:
        """The weighted parts of the loss per sample, each [B] with gradient; what is not computed is left out."""
        states = self.world.states(prepared.conditions)
        parts = self._policy(prepared, states, sums)
        if prepared.visit.anchors:
            parts.update(self._anchors(prepared, states, sums))
        return parts

    def _policy(self, prepared: Prepared, states: StateSequence, sums: LossSums) -> dict[str, Tensor]:
        """NFT loss and distance to the reference."""
        conditions, sample = prepared.conditions, prepared.sample
        v_live = self.world.velocity(sample.x_sigma, sample.sigma_B, conditions, states).velocity_BCfHW
        r_B = to_device(torch.tensor([s.r for s in prepared.samples], dtype=torch.float32), v_live.device)
        nft = self._nft(sample, v_live, prepared.v_old, r_B)
        sums.add("nft", nft.loss_per_sample)
        sums.add("pos", nft.pos)
        sums.add("neg", nft.neg)
        sums.add_by_sigma(prepared.sigma_thirds, nft.loss_per_sample)
        parts = {"nft": nft.loss_per_sample}
        if prepared.v_reference is not None:
            difference = without_condition_slot(v_live.float() - prepared.v_reference.float())
            gap = difference.flatten(1).square().mean(dim=1)
            sums.add("reference", gap)
            parts["reference"] = self.config.anchors.reference_penalty * gap
        return parts

    def _noised(
        self, samples: Sequence[Sample], visit: Visit, sigma_index: int | None, conditions: ConditionBatch
    ) -> tuple[Noised, list[int]]:
        draw = self.draws.of_samples(samples, visit, sigma_index).to(self.world.device)
        thirds = [min(2, 3 * place // len(self.sigmas)) for place in draw.places]
        return noised(draw.x0, draw.eps, draw.level_B, conditions.first_latent_BC1HW), thirds

    def _reference_velocity(self, sample: Noised, conditions: ConditionBatch) -> Tensor | None:
        if self.config.anchors.reference_penalty == 0.0:
            return None
        with self.world.policies.use("reference"):
            return self.world.velocity(sample.x_sigma, sample.sigma_B, conditions).velocity_BCfHW

    def _nft(self, sample: Noised, v_live: Tensor, v_old: Tensor, r_B: Tensor) -> NFTLoss:
        loss = self.config.loss
        if loss.form == "paper_velocity_mse":
            return paper_velocity_mse(sample, v_live, v_old, r_B, beta_nft=loss.beta_nft, has_condition_slot=True)
        return nft_loss(
            sample,
            v_live,
            v_old,
            r_B,
            beta_nft=loss.beta_nft,
            advantage_clip=loss.advantage_clip,
            has_condition_slot=True,
        )

    def _anchors(self, prepared: Prepared, states: StateSequence, sums: LossSums) -> dict[str, Tensor]:
        """Anchor terms on the samples' own real clips; a sample without a clip adds 0 and is not counted."""
        visit, real, weights = prepared.visit, prepared.real, self.config.anchors
        if real is None:
            return self._anchor_forward_for_nothing(prepared, states) if visit.in_step else {}
        chosen = prepared.conditions.select(real.rows)
        kept = states.select(real.rows)
        parts: dict[str, Tensor] = {}

        def add(part: str, weight: float, loss: Tensor) -> None:
            sums.add(part, loss)
            zeros = torch.zeros(len(prepared.samples), device=loss.device, dtype=loss.dtype)
            index = to_device(torch.tensor(real.rows), loss.device)
            parts[part] = zeros.index_add(0, index, visit.anchor_scale * weight * loss)

        if real.sample is not None and real.weight_B is not None:
            output = self.world.velocity(real.sample.x_sigma, real.sample.sigma_B, chosen, kept)
            loss = flow_matching_loss(real.sample, output.velocity_BCfHW, real.weight_B, has_condition_slot=True)
            add("fm_real", weights.fm_real, loss)
        if weights.transition_real and self.transition_has_gradient:
            loss = transition_cross_entropy(self.world.transition_logits(kept, chosen), real.codes)
            add("transition_real", weights.transition_real, loss)
        return parts

    def _anchor_forward_for_nothing(self, prepared: Prepared, states: StateSequence) -> dict[str, Tensor]:
        """The forward that the other ranks' clips need of this rank, with weight 0."""
        if not self.config.anchors.fm_real:
            return {}
        sample = prepared.sample
        output = self.world.velocity(sample.x_sigma, sample.sigma_B, prepared.conditions, states)
        return {"fm_real": 0.0 * output.velocity_BCfHW.float().flatten(1).mean(dim=1)}

    @property
    def transition_has_gradient(self) -> bool:
        """In `coupling` mode the cross-entropy is a constant: not computed, never reported as training."""
        return self.config.mode != "coupling"

    def _real_inputs(self, samples: Sequence[Sample], visit: Visit, conditions: ConditionBatch) -> RealInputs | None:
        rows, clips = self._clips_of(samples)
        if not rows:
            return None
        device = self.world.device
        codes = to_device(torch.stack([clip.codes for clip in clips]), device)
        if not self.config.anchors.fm_real:
            return RealInputs(rows, None, None, codes)
        draw = self.draws.of_clips([samples[row] for row in rows], clips, visit).to(device)
        first = conditions.select(rows).first_latent_BC1HW
        return RealInputs(rows, noised(draw.x0, draw.eps, draw.level_B, first), draw.weight_B, codes)

    def _clips_of(self, samples: Sequence[Sample]) -> tuple[tuple[int, ...], list[RealClip]]:
        """The rows whose condition has a clip, and the clips."""
        found = [(row, self._real_of(s.condition_id)) for row, s in enumerate(samples)]
        return tuple(row for row, clip in found if clip is not None), [clip for _, clip in found if clip is not None]
