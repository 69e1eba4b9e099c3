"""Protocol `mechanics-reward-v1`: everything that decides what a judge sees, and its hash."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from string import Template

from stateplay_rl.config.judging import ProtocolConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.judges.frames import RESIZING, Jpeg, example_jpeg
from stateplay_rl.stores.atomic import sha256_bytes, sha256_json

PROTOCOL = "mechanics-reward-v1"
PROMPT_FILE = "mechanics_reward_v1.txt"
PAYLOAD_VERSION = 1
"""Raised whenever the same settings would give another request."""
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class JudgingProtocol:
    """The protocol with its settings.

    Raises:
        InputError, CorruptionError: an example image is missing or unreadable (when `examples` is asked for).
    """

    config: ProtocolConfig

    @cached_property
    def template(self) -> str:
        """Text of the versioned prompt file."""
        return (files("stateplay_rl.judges") / "prompts" / PROMPT_FILE).read_text(encoding="utf-8")

    @cached_property
    def examples(self) -> tuple[Jpeg, ...]:
        """The configured example images as they are sent."""
        return tuple(
            example_jpeg(path, self.config.longest_side, self.config.jpeg_quality)
            for path in self.config.example_images
        )

    @cached_property
    def facts(self) -> dict[str, object]:
        """What the hash is taken over, and what stands in every record."""
        settings = self.config.model_dump(mode="json", exclude={"example_images", "mode"})
        return {
            "protocol": PROTOCOL,
            "payload_version": PAYLOAD_VERSION,
            "prompt_sha256": sha256_bytes(self.template.encode("utf-8")),
            "example_sha256": [sha256_bytes(jpeg.data) for jpeg in self.examples],
            "resizing": RESIZING,
            **settings,
        }

    @cached_property
    def sha256(self) -> str:
        """Hash of the protocol alone; a judge adds its model and request settings."""
        return sha256_json(self.facts)

    def instruction(self, labels: tuple[str, ...]) -> str:
        """The instruction for candidates under these labels."""
        return Template(self.template).substitute(
            labels=", ".join(labels),
            score_example=", ".join(f'"{label}": 0..100' for label in labels),
            evidence_example=", ".join(f'"{label}": "..."' for label in labels),
        )


def labels_for(candidates: int) -> tuple[str, ...]:
    """A, B, C, ... for so many candidates.

    Raises:
        UsageError: more candidates than letters.
    """
    if not 1 <= candidates <= len(ALPHABET):
        raise UsageError(f"{candidates} candidates in a group cannot be labelled", f"at most {len(ALPHABET)}")
    return tuple(ALPHABET[:candidates])


def shuffled_order(group_id: str, candidates: int, seed: int) -> tuple[int, ...]:
    """Which candidate stands under each label: a fixed shuffle of this group.

    Sorted by a hash, so that it depends on no library's generator.
    """
    return tuple(sorted(range(candidates), key=lambda k: sha256_json([PROTOCOL, seed, group_id, k])))
