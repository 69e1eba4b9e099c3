"""Faults and biases of the arena's judge server, on demand and reproducible.

Every draw is keyed by (seed, request's bytes, how often they came): threads and timing change nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

Fault = Literal["none", "rate_limit", "error", "timeout", "reset", "malformed", "wrong_model"]
MALFORMED = ("prose", "cut", "missing_label", "string", "empty", "two_answers", "refusal")
_UNIT = float(1 << 64)


@dataclass(frozen=True)
class FaultPlan:
    """Shares of requests (0..1) that meet each fault, and what the answers are bent by.

    Args:
        noise: standard deviation of independent noise per candidate, points.
        request_noise: of one common offset per answer, points.
        position_bias: points added by place in the request, the first candidate first.
        low, high: the referee's 0..100 is mapped to this range, so that noise is not cut at the ends.
    """

    seed: int = 0
    rate_limit: float = 0.0
    error: float = 0.0
    timeout: float = 0.0
    reset: float = 0.0
    malformed: float = 0.0
    wrong_model: float = 0.0
    retry_after: float = 1.0
    hang: float = 60.0
    delay: float = 0.0
    noise: float = 0.0
    request_noise: float = 0.0
    position_bias: tuple[float, ...] = ()
    low: float = 0.0
    high: float = 100.0

    def fault(self, body_sha256: str, arrival: int) -> Fault:
        """Which fault a request meets."""
        left = self.uniform(body_sha256, arrival, "fault")
        shares: tuple[tuple[Fault, float], ...] = (
            ("rate_limit", self.rate_limit),
            ("error", self.error),
            ("timeout", self.timeout),
            ("reset", self.reset),
            ("malformed", self.malformed),
            ("wrong_model", self.wrong_model),
        )
        for name, share in shares:
            if left < share:
                return name
            left -= share
        return "none"

    def uniform(self, body_sha256: str, arrival: int, purpose: str) -> float:
        """A number in [0, 1) of its own for each purpose."""
        text = f"{self.seed}|{body_sha256}|{arrival}|{purpose}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / _UNIT

    def bent(self, scores: Mapping[str, float], body_sha256: str, arrival: int) -> dict[str, float]:
        """Scores with bias and noise, cut to 0..100; two decimals."""
        common = self.request_noise * self._normal(body_sha256, arrival, "request")
        result = {}
        for place, (label, score) in enumerate(scores.items()):
            bias = self.position_bias[place] if place < len(self.position_bias) else 0.0
            noise = self.noise * self._normal(body_sha256, arrival, f"noise {label}")
            value = self.low + (self.high - self.low) * score / 100.0 + bias + common + noise
            result[label] = round(min(100.0, max(0.0, value)), 2)
        return result

    def _normal(self, body_sha256: str, arrival: int, purpose: str) -> float:
        # Never exactly 0 or 1, where the inverse is infinite.
        u = min(max(self.uniform(body_sha256, arrival, purpose), 1e-12), 1 - 1e-12)
        return NormalDist().inv_cdf(u)


def good_content(scores: Mapping[str, float]) -> str:
    """The judge's JSON."""
    evidence = {label: f"the display and bodies agree with the engine to {score:g}" for label, score in scores.items()}
    return json.dumps({"scores": dict(scores), "evidence": evidence})


def malformed_message(kind: str, scores: Mapping[str, float]) -> tuple[dict[str, object], str]:
    """A message that must not be read as scores, and its finish reason."""
    good = good_content(scores)
    labels: Sequence[str] = list(scores)
    fewer = {label: scores[label] for label in labels[:-1]}
    texts = {label: f"{scores[label]:g}/100" for label in labels}
    other = {label: 100.0 - scores[label] + 0.5 * (scores[label] == 50.0) for label in labels}
    if kind == "cut":
        return {"role": "assistant", "content": good[: len(good) // 2]}, "length"
    if kind == "refusal":
        return {"role": "assistant", "content": "", "refusal": "I cannot assess this content."}, "stop"
    contents = {
        "prose": f"I compared {len(labels)} videos over 101 frames at 20 fps.",
        "missing_label": json.dumps({"scores": fewer}),
        "string": json.dumps({"scores": texts}),
        "empty": "",
        "two_answers": f"{good}\n{json.dumps({'scores': other})}",
    }
    return {"role": "assistant", "content": contents[kind]}, "stop"
