"""`train-nft` with a judge over HTTP that stops answering in the middle of a batch, and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.arena.serve_faults import Fault, FaultPlan
from stateplay_rl.judges import patience
from stateplay_rl.stages.train_nft import batches
from tests.arena.test_serve import serving
from tests.e2e.command_line import Arena, run_results, succeed

FAST = {
    "judge.requests.backoff_first_seconds": 0.05,
    "judge.requests.backoff_most_seconds": 0.2,
    "heldout.conditions": 0,
}


class Outage(FaultPlan):
    """The first two requests are answered; later ones are refused six times each before they are."""

    seen: list[str]

    def fault(self, body_sha256: str, arrival: int) -> Fault:
        if body_sha256 not in self.seen:
            self.seen.append(body_sha256)
        return "error" if self.seen.index(body_sha256) >= 2 and arrival < 6 else "none"


def train(arena: Arena, out: Path, url: str) -> str:
    judge = ("--judge", "openai", "--set", f"judge.base_url={url}")
    command = arena.train(out, *judge, stage_conditions=4, **FAST)
    return succeed(*[part for part in command if part != "--quiet"])


@pytest.mark.slow
def test_the_batch_waits_says_so_and_ends_the_same(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "TOLD_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(batches, "POLL_SECONDS", 0.05)
    with serving(FaultPlan()) as server:
        text = train(arena, tmp_path / "one" / "run", server.base_url)
    assert "is down" not in text
    plan = Outage()
    object.__setattr__(plan, "seen", [])
    with serving(plan) as server:
        text = train(arena, tmp_path / "two" / "run", server.base_url)
        assert server.log.counts["completed"] == 4
        assert server.log.counts["error"] == 2 * 6
    assert "judge openai:gpt-6.1-sol is down (http_500" in text
    assert "the judge answers again" in text
    one, two = (run_results(tmp_path / name / "run") for name in ("one", "two"))
    # A verdict names its request, which a refusal numbers on; all else is the same to the byte.
    assert one.pop("verdicts") != two.pop("verdicts")
    assert one == two
