"""The judge's request for an arena condition, and the fixed phrases of which arena's tokenizer makes single tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import AddedToken

from stateplay_rl.arena.dataset import ArenaCondition
from stateplay_rl.arena.state import FPS, FRAMES
from stateplay_rl.config.judging import ProtocolConfig
from stateplay_rl.judges import payload
from stateplay_rl.judges.action_table import table_text, windows_of
from stateplay_rl.judges.frames import frame_indices
from stateplay_rl.judges.protocol import JudgingProtocol, labels_for
from stateplay_rl.reward_model.payload import TextPart
from stateplay_rl.reward_model.small_model import train_tokenizer
from stateplay_rl.worlds.preparation import action_bin_edges

CANDIDATES = 4
FRAMES_SHOWN = 8
LATENT_FRAMES = 9
VOCABULARY = 640
IMAGE = None
"""Stands for a picture in a list of parts."""


def arena_protocol() -> JudgingProtocol:
    """The judge's protocol with arena's number of frames."""
    return JudgingProtocol(ProtocolConfig(frames=FRAMES_SHOWN))


def request_parts(condition: ArenaCondition) -> list[TextPart | None]:
    """Texts and places of pictures (None) of a condition's request; equal to what the judge's builder makes."""
    protocol = arena_protocol()
    labels = labels_for(CANDIDATES)
    edges = action_bin_edges(len(condition.held_buttons), LATENT_FRAMES)
    windows = windows_of(condition.held_buttons.tolist(), edges)
    parts: list[TextPart | None] = [
        TextPart(protocol.instruction(labels)),
        TextPart(payload.FIRST_FRAME),
        IMAGE,
        TextPart(f"{payload.OPPONENT}\n<opponent>{payload.quoted(condition.prompt)}</opponent>"),
        TextPart(f"{payload.ACTIONS}\n{table_text(windows, FPS)}"),
        TextPart(payload.REFERENCE),
        *_video("Reference"),
    ]
    for label in labels:
        parts += [TextPart(f"{payload.CANDIDATE} {label}."), *_video(f"{payload.CANDIDATE} {label}")]
    return [*parts, TextPart(payload.END)]


def _video(name: str) -> list[TextPart | None]:
    indices = frame_indices(FRAMES, FRAMES_SHOWN)
    parts: list[TextPart | None] = []
    for number, index in enumerate(indices, 1):
        parts += [TextPart(f"{name}, frame {number} of {len(indices)}, time {index / FPS:.3f} s:"), IMAGE]
    return parts


def phrases(conditions: Iterable[ArenaCondition]) -> list[str]:
    """Texts that stand in every request of arena, and the heads of the action table's lines."""
    found = {payload.FIRST_FRAME, payload.REFERENCE, payload.END, payload.OPPONENT, payload.ACTIONS}
    found |= {"<opponent>", "</opponent>"}
    labels = labels_for(CANDIDATES)
    found |= {f"{payload.CANDIDATE} {label}." for label in labels}
    found |= {line for line in arena_protocol().instruction(labels).splitlines() if line}
    for name in ("Reference", *(f"{payload.CANDIDATE} {label}" for label in labels)):
        found |= {part.text for part in _video(name) if part is not None}
    for condition in conditions:
        edges = action_bin_edges(len(condition.held_buttons), LATENT_FRAMES)
        windows = windows_of(condition.held_buttons.tolist(), edges)
        found |= {line.partition(": ")[0] + ": " for line in table_text(windows, FPS).splitlines()}
    return sorted(found)


def make_tokenizer(conditions: Sequence[ArenaCondition]) -> Any:
    """Arena's tokenizer: the fixed phrases, and pieces of the opponents' texts and of the answers."""
    texts = [condition.prompt for condition in conditions]
    texts += [table_text(windows_of(c.held_buttons.tolist(), ((0, 1),)), FPS) for c in conditions]
    texts += ['{"scores": {"A": 1, "B": 2, "C": 3, "D": 4}}'] * len(conditions)
    return train_tokenizer(texts, VOCABULARY, phrases(conditions))


def add_phrases(tokenizer: Any, conditions: Iterable[ArenaCondition]) -> int:
    """Make single tokens of the fixed phrases that a tokenizer does not know yet; how many there were."""
    known = tokenizer.get_added_vocab()
    missing = [phrase for phrase in phrases(conditions) if phrase not in known]
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in missing])
    return len(missing)
