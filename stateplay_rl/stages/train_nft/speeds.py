"""Seconds of one device's parts: the one home of what days are reckoned from.

Figures of one H200 at 480x832, 97 frames, and of arena on one core; other devices are scaled. `sprl verify profile` of
the machine itself replaces them (`Speeds.measured`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stateplay_rl.config.world import Checkpointing
from stateplay_rl.errors import InputError

H200_SLOWER: Mapping[str, float] = {"h200": 1.0, "l20": 7.0}
"""How often slower than an H200 a card is; the ratio of an L20's peaks is 6.3."""


@dataclass(frozen=True)
class Speeds:
    """Seconds of the parts of a run on one device.

    Args:
        step: one velocity of one candidate.
        decode: VAE decode of one candidate; its file is written by the host meanwhile.
        sample: old forward, live forward and backward of one training sample.
        anchors: what the flow-matching anchor on the real clip adds to a sample.
        encode: VAE encode of one clip.
        sources: where each figure comes from.
        student: the 9B student on one group: pictures, vision tower, prefill, four scores.
    """

    step: float
    decode: float
    sample: float
    anchors: float
    encode: float
    sources: Mapping[str, str]
    student: float = 0.0

    def on(self, device: str) -> Speeds:
        """The same parts on another card.

        Raises:
            InputError: a card whose ratio is not known.
        """
        if device not in H200_SLOWER:
            raise InputError(f"the speed of {device!r} is not known", f"known: {', '.join(H200_SLOWER)}")
        ratio = H200_SLOWER[device]
        parts = {name: ratio * float(getattr(self, name)) for name in PARTS}
        return replace(
            self, **parts, sources={**self.sources, "device": f"{device}, {ratio:g} times an H200's seconds"}
        )

    def measured(self, profile: Mapping[str, Any]) -> Speeds:
        """With the rows of `verify profile`'s ``profile.json`` in the place of these figures, where it has them.

        Args:
            profile: parsed JSON; a row that was left out has no `seconds`.
        """
        rows = {name: line["seconds"] for name, line in profile["rows"].items() if line.get("seconds") is not None}
        found: dict[str, float] = {}
        named = (("step", "forward"), ("decode", "decode"), ("encode", "encode"), ("student", "student scores a group"))
        for part, row in named:
            if row in rows:
                found[part] = rows[row]
        # With checkpointing where both were measured: what surely fits 48 GB.
        for ending in ("", ", checkpointed"):
            if f"micro-step{ending}" in rows:
                found["sample"] = rows[f"micro-step{ending}"]
        if "micro-step" in rows and "micro-step, anchors" in rows:
            found["anchors"] = rows["micro-step, anchors"] - rows["micro-step"]
        device = profile.get("machine", {}).get("device", "a GPU")
        sources = {**self.sources, **dict.fromkeys(found, f"verify profile on {device}")}
        return replace(self, **found, sources=sources)


PARTS = ("step", "decode", "sample", "anchors", "encode", "student")
"""What a slower card takes longer for."""
_PROFILE = "examples/benchmarks/results/profile_h200.json"
_SOURCES = dict.fromkeys(PARTS, _PROFILE)
H200 = Speeds(0.201, 1.10, 0.841, 0.616, 0.369, _SOURCES, student=2.55)
"""With all blocks recomputed in training. The anchor is a forward and backward."""
H200_BY_CHECKPOINTING: Mapping[Checkpointing, Speeds] = {
    "full": H200,
    "selective": replace(H200, sample=0.799, anchors=0.57),
    "off": replace(H200, sample=0.738, anchors=0.523),
}
"""The selective anchor is the mean of the two others."""
ARENA_CORE = Speeds(0.020, 0.12, 0.065, 0.0, 0.05, dict.fromkeys(PARTS, "arena on one core of a 2024 server"))
