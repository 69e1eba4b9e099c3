"""What a call of the loss takes from the host: stored latents, and all that is drawn.

Every draw is keyed by the sample, never by the call (`nft.randomness`), so it may be made at any time: with a GPU by a
thread, while the device is at work on the call before. Shapes: B videos per call, C latent channels, f H W latents.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.nft.randomness import DrawKey, choice, index, normal
from stateplay_rl.nft.schedule import TrainingGrid, sampling_sigmas
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.worlds.transfer import pinned, to_device

GROUP_SHARED = -2
"""Candidate field of the key when all candidates of a group share one (sigma, eps)."""


@dataclass(frozen=True)
class Visit:
    """Where a call stands: batch, inner pass, whether anchors take part, and what they are multiplied by.

    `in_step`: weights are sharded, so every call makes the same number of forwards, with a real clip or without.
    """

    batch: int
    inner_pass: int
    anchors: bool
    anchor_scale: float = 1.0
    in_step: bool = False


@dataclass(frozen=True)
class RealClip:
    """A condition's own clip: latents [C, f, H, W] and its tokenizer codes [f-1, M]."""

    latents: Tensor
    codes: Tensor


@dataclass(frozen=True)
class Draw:
    """Clean latents and noise [B, C, f, H, W] and a noise level per video, on the host.

    Args:
        weight_B: of clips: their weight at that level.
        places: of samples: the level's place on the sampling grid.
    """

    x0: Tensor
    eps: Tensor
    level_B: Tensor
    weight_B: Tensor | None = None
    places: tuple[int, ...] = ()

    def pinned(self, device: torch.device) -> Draw:
        """In memory from which a GPU copies without a wait; the same for a CPU."""
        return self._each(lambda tensor: pinned(tensor, device))

    def to(self, device: torch.device) -> Draw:
        """A copy on the device, which the host does not wait for."""
        return self._each(lambda tensor: to_device(tensor, device))

    def _each(self, move: Callable[[Tensor], Tensor]) -> Draw:
        weight_B = None if self.weight_B is None else move(self.weight_B)
        return Draw(move(self.x0), move(self.eps), move(self.level_B), weight_B, self.places)


class Draws:
    """Draws for calls, now or ahead of their time.

    Args:
        config: seed, grid, and whether a group shares its noise.
        device: where the draws are going.
        latents_of: sample -> stored clean latents [C, f, H, W] (bf16 values, float32 tensor).
    """

    def __init__(self, config: TrainNftConfig, device: torch.device, latents_of: Callable[[Sample], Tensor]) -> None:
        self._config = config
        self._device = device
        self._latents_of = latents_of
        self._grid = TrainingGrid.build()
        self.sigmas = sampling_sigmas(config.sampling.steps, config.sampling.shift)
        self._thread = ThreadPoolExecutor(1, "draws") if device.type == "cuda" else None
        self._begun: dict[Hashable, Future[Draw]] = {}

    @property
    def by_thread(self) -> bool:
        """Whether draws are made ahead of their time: with a GPU."""
        return self._thread is not None

    def of_samples(self, samples: Sequence[Sample], visit: Visit, sigma_index: int | None) -> Draw:
        """The samples' stored latents with fresh noise and levels of the sampling grid: `sigma_index`, else drawn."""
        begun = self._begun.pop(("samples", tuple(samples), visit, sigma_index), None)
        return self._samples(samples, visit, sigma_index) if begun is None else begun.result()

    def of_clips(self, samples: Sequence[Sample], clips: Sequence[RealClip], visit: Visit) -> Draw:
        """The samples' own clips with fresh noise, levels and weights of the training grid."""
        begun = self._begun.pop(("clips", tuple(samples), visit), None)
        return self._clips(samples, clips, visit) if begun is None else begun.result()

    def begin_samples(self, samples: Sequence[Sample], visit: Visit, sigma_index: int | None) -> None:
        """Let the thread make the next `of_samples`."""
        assert self._thread is not None, "there is a thread with a GPU alone"
        self._begun.clear()  # what nobody took belongs to a step that was given up
        key = ("samples", tuple(samples), visit, sigma_index)
        self._begun[key] = self._thread.submit(self._samples, samples, visit, sigma_index)

    def begin_clips(self, samples: Sequence[Sample], clips: Sequence[RealClip], visit: Visit) -> None:
        """Let the thread make the next `of_clips`."""
        assert self._thread is not None, "there is a thread with a GPU alone"
        self._begun["clips", tuple(samples), visit] = self._thread.submit(self._clips, samples, clips, visit)

    def _samples(self, samples: Sequence[Sample], visit: Visit, sigma_index: int | None) -> Draw:
        x0 = torch.stack([self._latents_of(s) for s in samples])
        eps = torch.stack([normal(self._shared("train_eps", s, visit), x0.shape[1:]) for s in samples])
        places = tuple(
            index(self._shared("train_sigma", s, visit), len(self.sigmas)) if sigma_index is None else sigma_index
            for s in samples
        )
        return Draw(x0, eps, self.sigmas[torch.tensor(places)], places=places).pinned(self._device)

    def _clips(self, samples: Sequence[Sample], clips: Sequence[RealClip], visit: Visit) -> Draw:
        x0 = torch.stack([clip.latents for clip in clips]).float()
        eps = torch.stack([normal(self._own("real_eps", s, visit), x0.shape[1:]) for s in samples])
        times = [self._own("real_time", s, visit) for s in samples]
        steps = torch.stack([choice(key, torch.arange(len(self._grid))) for key in times])
        return Draw(x0, eps, *self._grid.at(steps)).pinned(self._device)

    def _shared(self, purpose: str, sample: Sample, visit: Visit) -> DrawKey:
        key = self._own(purpose, sample, visit)
        return replace(key, candidate=GROUP_SHARED) if self._config.loss.shared_group_noise else key

    def _own(self, purpose: str, sample: Sample, visit: Visit) -> DrawKey:
        return DrawKey(self._config.seed, purpose, visit.batch, visit.inner_pass, sample.condition_id, sample.candidate)
