"""The pieces of work that a run is made of, on one world and one condition: what the profile times.

Shapes: B = 1 batch, C latent channels, f latent slots, H W latent grid, T frames, h w picture size, L text
tokens, D text width.
"""

from __future__ import annotations

import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from stateplay_rl.checks.parity import drawn_inputs
from stateplay_rl.config.rollout import SamplingConfig
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.nft.randomness import DrawKey, generator, normal
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.nft.solvers import Euler, pin_first_slot, solver_steps
from stateplay_rl.stages.profile.meter import Meter
from stateplay_rl.stages.train_nft.draws import RealClip, Visit
from stateplay_rl.stages.train_nft.gradients import global_gradient
from stateplay_rl.stages.train_nft.objective import Objective
from stateplay_rl.stages.train_nft.samples import Sample
from stateplay_rl.stores.video import encode_mp4
from stateplay_rl.worlds.base import ConditionBatch, StateSequence
from stateplay_rl.worlds.native.random_world import NoText
from stateplay_rl.worlds.native.text import TEXT_PRESETS
from stateplay_rl.worlds.native.world import NativeStates, NativeWorld
from stateplay_rl.worlds.preparation import bin_actions
from stateplay_rl.worlds.sampling import sample_candidates

SIGMA = 0.6
PROMPT_TOKENS = 24
OPTIMALITY = 0.7
MICRO_STEPS = 4
"""Samples of a rank of seven in an optimizer step of 28."""
OLD_SHIFT = 1e-3
"""Live is moved this much away from old, so that no product of the loss is trivially zero."""


class Workload:
    """One condition of a world in transition mode; every method is one row's work.

    Args:
        world: freshly made; its mode is set here.
        preset: name of its sizes, for a drawn text context.
        frames: frames of the video, 1 (mod 4).
    """

    def __init__(self, world: NativeWorld, preset: str, frames: int) -> None:
        self.world = world
        self.meter = Meter(world.device)
        self.candidate_parts: dict[str, float] = {}
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[float] | None = None
        self.slots = world.spec.latent_frames(frames)
        if world.policies.distance("live", "old") == 0:
            groups = world.set_mode("transition")
            self.parameters = [p for group in groups for p in group.parameters]
            live = world.policies.state("live")
            world.policies.load("live", {name: value + OLD_SHIFT for name, value in live.items()})
        else:
            self.parameters = [p for p in world.transformer.parameters() if p.requires_grad]
        inputs, self.video_ThwC = drawn_inputs(world.spec, self.slots, 0)
        self.first_frame_1hwC = self.video_ThwC[:1]
        device = world.device
        if isinstance(world.modules.text, NoText):
            sizes = TEXT_PRESETS[preset]
            text_1LD = normal(DrawKey(0, "profile_text"), (1, sizes.tokens, sizes.d_model))
            text_1LD[:, PROMPT_TOKENS:] = 0
        else:
            text_1LD = world.modules.text.encode([inputs.prompt])
        self.conditions = ConditionBatch(
            ("profile",),
            world.encode_video(self.first_frame_1hwC)[None].to(device),
            torch.from_numpy(bin_actions(inputs.held_actions_RK, self.slots))[None].to(device),
            text_1LD.to(device),
        )
        _, channels, _, height, width = self.conditions.first_latent_BC1HW.shape
        shape = (channels, self.slots, height, width)
        self.clean_BCfHW = normal(DrawKey(0, "profile_clip"), shape)[None].to(device)
        self.noise_BCfHW = normal(DrawKey(0, "profile_noise"), shape)[None].to(device)
        # As a run has it: clean latents and the clip's codes come from files, not off the device.
        with torch.no_grad():
            codes = world.transition_codes(self.clean_BCfHW)[0].cpu()
        self.stored_CfHW = self.clean_BCfHW[0].cpu()
        self.clip = RealClip(self.stored_CfHW, codes)
        self.sigma_B = torch.tensor([SIGMA], device=device)
        with torch.no_grad():
            self.states = world.states(self.conditions)

    # -- the transformer --------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self) -> Tensor:
        """One velocity; text keys and values and states come from the condition."""
        return self.world.velocity(self.noise_BCfHW, self.sigma_B, self.conditions, self.states).velocity_BCfHW

    @torch.no_grad()
    def condition_parts(self) -> StateSequence:
        """What a condition needs once: state sequence, text keys and values."""
        return self.world.states(self.conditions)

    def both(self) -> None:
        """Forward, and backward to latents and states; no weight has a gradient."""
        latents = self.noise_BCfHW.clone().requires_grad_()
        with self.world.policies.live_window():
            states = self._leaf_states()
            velocity = self.world.velocity(latents, self.sigma_B, self.conditions, states).velocity_BCfHW
            velocity.square().mean().backward()  # type: ignore[no-untyped-call]

    def _leaf_states(self) -> NativeStates:
        tokens = self.states.tokens_BNC.detach().clone().requires_grad_()
        return NativeStates(self.states.low_BfMS, tokens, self.states.text)

    # -- training ---------------------------------------------------------------------------------------------

    def micro_steps(self, *, anchors: bool) -> None:
        """`MICRO_STEPS` samples' share of an optimizer step, by the code that trains.

        Each is an old forward, a live forward and its backward. As on a rank of several, no two are of one condition.
        """
        samples = [Sample(f"g-{n}", f"c-{n}", 0, OPTIMALITY, self.slots) for n in range(MICRO_STEPS)]
        visit = Visit(0, 0, anchors=anchors)
        gradient = global_gradient(self._objective(), samples, visit, self.parameters, self._alone)
        assert gradient.is_finite, "the profile's gradient is not finite"

    def _objective(self) -> Objective:
        config = TrainNftConfig(mode="transition", sampling=SamplingConfig(steps=30))
        return Objective(
            self.world,
            config,
            lambda ids: self.conditions.select([0] * len(ids)),
            lambda _: self.stored_CfHW,
            lambda _: self.clip,
        )

    def waits_of_micro_steps(self, *, anchors: bool) -> list[str]:
        """Where the host waited for the device during `micro_steps`, a place a wait; empty on a CPU."""
        if not self.meter.on_gpu:
            return []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                self.micro_steps(anchors=anchors)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits = [w for w in caught if "synchronizing" in str(w.message)]
        return [f"{Path(w.filename).name}:{w.lineno}" for w in waits]

    @property
    def _alone(self) -> Processes:
        return Processes(0, 1, self.world.device)

    # -- sampling ---------------------------------------------------------------------------------------------

    def decode(self) -> None:
        """Latents to frames on the host."""
        self.world.decode(self.clean_BCfHW)

    def encode(self) -> None:
        """Frames on the host to latents."""
        self.world.encode_video(self.video_ThwC)

    def candidate(self, steps: int) -> None:
        """First frame, states, all steps, decode, mp4: one of many candidates, as `sprl rollout` makes them.

        The mp4 is written by a thread while the next candidate is drawn, and waited for before the next one is handed
        over. The text is given. Seconds of the parts, the thread's of the candidate before, are kept in
        `candidate_parts`.
        """
        times = [time.perf_counter()]
        first = self.world.encode_video(self.first_frame_1hwC)[None].to(self.world.device)
        conditions = ConditionBatch(
            self.conditions.condition_ids, first, self.conditions.action_bins_BfK, self.conditions.text_BLD
        )
        times.append(time.perf_counter())
        latents = sample_candidates(
            self.world, conditions, policy="old", sigmas=sampling_sigmas(steps), noise=[generator(0)]
        )
        self.meter.wait()
        times.append(time.perf_counter())
        frames = self.world.decode(latents.float())
        times.append(time.perf_counter())
        written = self._writing.result() if self._writing else 0.0
        times.append(time.perf_counter())
        self._writing = self._writer.submit(_write_mp4, frames[0], self.world.spec.fps)
        names = ("first frame", "sample", "decode", "wait for the mp4 before")
        self.candidate_parts = {name: b - a for name, (a, b) in zip(names, pairwise(times), strict=True)}
        self.candidate_parts["mp4 (beside)"] = written

    def loop_without_waiting(self, steps: int) -> None:
        """Euler steps during which any wait of the host for the GPU is an error.

        Raises:
            RuntimeError: an operation of the loop waits.
        """
        pin = pin_first_slot(self.conditions.first_latent_BC1HW)
        with self.world.policies.use("old"), torch.no_grad():
            states = self.world.states(self.conditions)
            loop = solver_steps(
                Euler,
                lambda x, sigma_B: self.world.velocity(x, sigma_B, self.conditions, states).velocity_BCfHW,
                self.noise_BCfHW,
                sampling_sigmas(steps),
                pin,
            )
            next(loop)  # grid and pin go to the device before the first step
            if self.world.device.type == "cuda":
                torch.cuda.set_sync_debug_mode("error")
            try:
                for _ in loop:
                    pass
            finally:
                if self.world.device.type == "cuda":
                    torch.cuda.set_sync_debug_mode("default")


def _write_mp4(frames_ThwC: np.ndarray, fps: float) -> float:
    """Seconds of writing one video."""
    began = time.perf_counter()
    with TemporaryDirectory() as folder:
        encode_mp4(Path(folder) / "candidate.mp4", frames_ThwC, fps)
    return time.perf_counter() - began
