"""The student judge at its real size on random weights: a group read and scored, and a LoRA step on it.

Random weights cost the same time as trained ones; their answers mean nothing, so the digits of the scores are forced.
Shapes: L tokens of the prompt, D width of the language model.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stateplay_rl.config.judging import ProtocolConfig
from stateplay_rl.judges.protocol import JudgingProtocol
from stateplay_rl.reward_model import delta_rule, lora
from stateplay_rl.reward_model.answers import AnswerForm
from stateplay_rl.reward_model.chat import ChatFormat
from stateplay_rl.reward_model.fixed_decoder import decoder_of
from stateplay_rl.reward_model.fused import FusedName, resolve_fused
from stateplay_rl.reward_model.language import AnswerDecoder, embed
from stateplay_rl.reward_model.learning import (
    PIECE_TOKENS,
    GroupInput,
    Precision,
    group_loss,
    grow_in_pieces,
    half_precision,
    offloaded,
    prepare_for_scoring,
    prepare_for_training,
    save_memory,
)
from stateplay_rl.reward_model.payload import GroupPayload, TextPart, build_from_group
from stateplay_rl.reward_model.pictures import PictureReader
from stateplay_rl.reward_model.reading import Prompt
from stateplay_rl.reward_model.small_model import SPECIAL_TOKENS, SmallSizes, build_config, train_tokenizer
from stateplay_rl.reward_model.vision import VisionFeatures
from stateplay_rl.stages.profile.ceilings import TERA, Ceilings
from stateplay_rl.stages.profile.meter import Meter
from stateplay_rl.stores.groups import GroupRecord, GroupStore, StoredGroup

VOCABULARY = 2048
"""Of the request's own tokenizer: what a text costs in tokens is about that of the real one."""
SMALL_PIECE_TOKENS = 500
FORCED_SCORES = (71, 3, 100, 48)


class StudentWorkload:
    """Model, adapter and one group of four candidates.

    Args:
        device: where the model is.
        real: the 9B and a request of 124 pictures of 832x480; otherwise a small model of the class and a small request.
    """

    def __init__(
        self, device: torch.device, real: bool, rule: delta_rule.RuleName = "auto", fused: FusedName = "auto"
    ) -> None:
        grow_in_pieces(device)
        self.meter = Meter(device)
        self.precision: Precision = "bfloat16" if real else "float32"
        self.rule = delta_rule.DeltaRule(rule, device).install().name
        self.fused = resolve_fused(fused, device)
        self.payload = request(real)
        base = random_base(device, real)
        self.model, _ = with_adapter(base)
        save_memory(self.model, PIECE_TOKENS if real else SMALL_PIECE_TOKENS, fused=self.fused)
        self.chat = chat_of(self.payload, base)
        self.form = AnswerForm.of(self.chat, self.payload.labels)
        self.pictures = picture_reader()
        self.grids = [self.pictures.grid(image.jpeg) for image in self.payload.images]
        prompt = self.chat.prompt(self.payload.parts, [grid.tokens(self.pictures.merge) for grid in self.grids])
        self.prompt_ids, self.visual_tokens = tuple(prompt.ids), sum(prompt.image_tokens)
        self.features = VisionFeatures(base, self.pictures, "0" * 64, fused=self.fused, captured=self.fused)
        self.decoder = decoder_of(self.model, fused=self.fused, captured=self.fused)
        self._optimizer: torch.optim.Optimizer | None = None
        self._seen: Any = None

    @property
    def tokens(self) -> int:
        """L."""
        return len(self.prompt_ids)

    def score(self) -> None:
        """Pictures read, vision tower, prompt and four scores."""
        self._score(lambda: None)

    def score_in_parts(self) -> dict[str, float]:
        """Seconds of the parts of `score`, each waited for: together more than the whole, whose parts overlap."""
        laps = Laps(self.meter)
        self._score(laps)
        pictures, embedding, prefill, answer = laps.seconds
        return {"pictures and tower": pictures, "prompt": embedding + prefill, "answer": answer}

    @torch.no_grad()
    def _score(self, lap: Callable[[], object]) -> None:
        prepare_for_scoring(self.model)
        with half_precision(self.meter.device, self.precision):
            self._seen = self.features(self.payload.images)
            lap()
            score_prompt(self.decoder, Prompt(self.prompt_ids, self._seen, self.grids), self.form, lap)

    def step(self) -> None:
        """One LoRA step on the group, every layer recomputed; the vision features are those of the last `score`."""
        prepare_for_training(self.model, checkpointing=True)
        self.decoder.release()
        if self._optimizer is None:
            self._optimizer = optimizer_of(self.model)
        answer = self.form.tokens(FORCED_SCORES)
        group = GroupInput((*self.prompt_ids, *answer), len(answer), self._seen, self.grids)
        lora_step(self.model, group, self._optimizer, self.meter.device, self.precision)

    def floors(self, ceilings: Ceilings) -> tuple[float, float]:
        """Seconds that scoring and step cannot fall below: products and causal attention at the ceilings.

        A step computes every layer's forward twice and the gradients of its inputs; the tower is in the first alone.
        """
        text = self.model.get_base_model().config.text_config
        base = self.model.get_base_model().model
        weights = sum(p.numel() for name, p in base.language_model.named_parameters() if "lora_" not in name)
        weights -= base.language_model.embed_tokens.weight.numel()
        merged = self.pictures.merge**2
        tower = sum(p.numel() for p in base.visual.parameters())
        best = ceilings.attention[ceilings.fastest]
        full = sum(kind == "full_attention" for kind in text.layer_types)
        attention = 2.0 * full * self.tokens**2 * text.num_attention_heads * text.head_dim / TERA
        products = 2.0 * weights * self.tokens / TERA / ceilings.matmul_tflops
        vision = 2.0 * tower * self.visual_tokens * merged / TERA / ceilings.matmul_tflops
        forward = products + attention / best.forward_tflops
        return forward + vision, 2 * forward + products + 2.5 * attention / best.both_tflops


def with_adapter(base: Any) -> tuple[Any, lora.LoraTargets]:
    """The base with a fresh adapter of the usual sizes, and where it was put."""
    targets = lora.find_targets(base, base.config.text_config.layer_types)
    return lora.attach(base, targets, rank=16, alpha=32, dropout=0.05, seed=0), targets


def chat_of(payload: GroupPayload, base: Any) -> ChatFormat:
    """The request in tokens of a tokenizer made of its own texts."""
    texts = [part.text for part in payload.parts if isinstance(part, TextPart)]
    return ChatFormat(train_tokenizer(texts, VOCABULARY), int(base.config.image_token_id))


def picture_reader() -> PictureReader:
    """Pictures cut as the 9B wants them."""
    return PictureReader(16, 2, 2, {"shortest_edge": 1024, "longest_edge": 1 << 24})


class Laps:
    """Seconds of one piece of work after another; a call ends one, when the device's queue is empty."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._times = [time.perf_counter()]

    def __call__(self) -> None:
        self._meter.wait()
        self._times.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        """Of every piece."""
        return [b - a for a, b in pairwise(self._times)]


@torch.no_grad()
def score_prompt(decoder: AnswerDecoder, prompt: Prompt, form: AnswerForm, lap: Callable[[], object]) -> None:
    """Prefill and the four scores: the digits are forced, everything else is what greedy reading does.

    Args:
        lap: called after embedding, prefill and answer.
    """
    opening = form.before[0]
    inputs = embed(decoder.model, (*prompt.ids, *opening), prompt.features, prompt.grids)
    lap()
    decoder.prefill(inputs, keep=len(opening) + 1).argmax(-1).tolist()
    lap()
    force_scores(decoder, form)
    lap()


def optimizer_of(model: Any) -> torch.optim.Optimizer:
    """AdamW over the adapter."""
    return torch.optim.AdamW(lora.trained_parameters(model).values(), lr=1e-4, weight_decay=0.0)


def lora_step(
    model: Any,
    group: GroupInput,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    precision: Precision,
    *,
    offload: bool = False,
) -> float:
    """Forward, backward, AdamW on one group; its loss. `offload`: the layers' inputs wait in host memory."""
    try:
        with half_precision(device, precision):
            with offloaded(device, offload):
                loss = group_loss(model, group)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    finally:
        optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def force_scores(decoder: AnswerDecoder, form: AnswerForm) -> None:
    """What greedy reading does when the model writes `FORCED_SCORES`: every pass, and the step back after `10`."""
    marks = [*form.before[1:], (*form.end, form.end_of_turn)]
    for score, mark in zip(FORCED_SCORES, marks, strict=True):
        first, *rest = form.score_tokens(score)
        decoder.add([first]).argmax(-1).tolist()
        state = decoder.state()
        decoder.add([*rest[:1], *mark]).argmax(-1).tolist()
        if len(rest) == 2:
            decoder.back_to(state)
            decoder.add(rest[:1]).argmax(-1).tolist()
            decoder.add([*rest[1:], *mark]).argmax(-1).tolist()


def random_base(device: torch.device, real: bool) -> Any:
    """A frozen model made on the device: the class's default configuration, which is the 9B, in bfloat16; or small."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    if real:
        # The request's tokenizer numbers its special tokens first.
        image_token = SPECIAL_TOKENS.index("<|image_pad|>")
        config = Qwen3_5Config(vision_config={"out_hidden_size": 4096}, image_token_id=image_token)
        assert config.text_config.hidden_size == 4096
    else:
        config = build_config(SmallSizes(), train_tokenizer([], VOCABULARY))
        config.text_config.vocab_size = VOCABULARY
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(0)
        dtype = torch.bfloat16 if real else torch.float32
        model: Any = Qwen3_5ForConditionalGeneration._from_config(config, attn_implementation="sdpa", dtype=dtype)
    return model.requires_grad_(False).eval()


def request(real: bool) -> GroupPayload:
    """The request of a made-up group: 120 frames, a first frame, three example pictures; or a small one."""
    from PIL import Image

    height, width, frames = (480, 832, 97) if real else (64, 96, 33)
    with tempfile.TemporaryDirectory() as folder:
        group = moving_group(Path(folder), height, width, frames)
        examples = [Path(folder) / f"example{i}.png" for i in range(3)]
        for i, path in enumerate(examples):
            Image.fromarray(np.full((height, width, 3), 60 * i, np.uint8)).save(path)
        config = ProtocolConfig(frames=24 if real else 4, example_images=tuple(examples))
        return build_from_group(group, JudgingProtocol(config))


def moving_group(folder: Path, height: int, width: int, frames: int) -> StoredGroup:
    """A stored group of moving pictures: four candidates, a first frame and a reference."""
    rows, columns = np.mgrid[:height, :width]
    wave = (128 + 60 * np.sin(np.arange(height + width + 3 * frames + 200) / 25.0)).astype(np.uint8) // 2
    texture = np.random.default_rng(0).integers(0, 60, (height, width, 3), dtype=np.uint8)

    def video(phase: int) -> np.ndarray:
        shift = (columns + rows)[None] + 3 * np.arange(frames)[:, None, None] + 40 * phase
        moved: np.ndarray = wave[shift][..., None] + texture
        return moved

    record = GroupRecord(
        group_id="benchmark",
        condition_id="benchmark",
        batch=0,
        policy_sha256="0" * 64,
        world_sha256="0" * 64,
        sampler="euler",
        sampling_steps=30,
        seeds=(0, 1, 2, 3),
        prompt="NPC: Active_Behavior(Walk Right: the opponent walks), Strategy(Rush Down: the opponent attacks)",
        fps=20.0,
        frames=frames,
        latent_frames=(frames - 1) // 4 + 1,
        buttons=tuple(tuple(int((i // 4 + k) % 5 == 0) for k in range(11)) for i in range(frames)),
        action_bin_edges=tuple((4 * i, 4 * i + 4) for i in range((frames - 1) // 4 + 1)),
        mechanics_class="normal",
    )
    latents = [torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16) for _ in range(4)]
    return GroupStore(folder).write(record, video(4)[0], latents, [video(k) for k in range(4)], video(4))
