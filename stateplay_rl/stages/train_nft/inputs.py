"""What `train-nft` is given and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.errors import UsageError

HAND_MADE = "hand"
"""Segment kind of a batch that was made with `rollout` and `score`."""


@dataclass(frozen=True)
class TrainInputs:
    """What `train-nft` reads.

    Args:
        conditions: conditions/ of the whole pass.
        groups, scores: come together: one hand-made batch.
        resume: go on with an unfinished run.
        overwrite: begin anew, whatever lies in the output.
    """

    conditions: Path
    groups: Path | None = None
    scores: Path | None = None
    resume: bool = False
    overwrite: bool = False

    @property
    def hand_made(self) -> bool:
        return self.groups is not None

    def kind(self, config: TrainNftConfig) -> str:
        """Kind of the segment that this command works on."""
        return HAND_MADE if self.hand_made else config.stage

    def check(self, config: TrainNftConfig) -> None:
        """Refuse what excludes each other.

        Raises:
            UsageError: options that do not go together.
        """
        if (self.groups is None) != (self.scores is None):
            raise UsageError("--groups and --scores belong together", "give both, or neither")
        if config.extend is not None and self.hand_made:
            raise UsageError("--extend adds conditions to stage A", "leave out --groups and --scores")
        if self.overwrite and (config.extend is not None or config.stage == "c"):
            raise UsageError(
                "--overwrite begins a run anew; --extend and --stage c go on with one", "leave out --overwrite"
            )
        if self.hand_made and config.stage == "c":
            raise UsageError("a hand-made batch brings its own scores: it belongs to no stage", "leave out --stage c")

    def named(self, config: TrainNftConfig) -> dict[str, Path]:
        """Input directories of the run by name, for its manifest."""
        named = {"conditions": self.conditions, "audit": config.audit}
        return {name: path for name, path in named.items() if path is not None}

    def named_of_segment(self, config: TrainNftConfig) -> dict[str, Path]:
        """Input directories of one segment by name."""
        own = {
            "groups": self.groups,
            "scores": self.scores,
            "reward_model": config.gated_reward_model if config.stage == "c" else None,
            "preflight": config.preflight,
        }
        return {**self.named(config), **{name: path for name, path in own.items() if path is not None}}


@dataclass(frozen=True)
class TrainSummary:
    """What came out; rewards are (batches done, points).

    Args:
        conditions: of the segment that this command ran.
        scored: successful judgements among them (what stage A's count of successful requests means).
        left: conditions of the pass that are still unseen.
        smoke: a stage of this run was forced without its gate.
    """

    out: Path
    batches: int
    optimizer_steps: int
    candidates_seen: int
    ledger: dict[str, int]
    heldout: tuple[tuple[int, float], ...]
    alarms: int
    policy_file: Path
    already_done: bool = False
    segment: str = ""
    conditions: int = 0
    scored: int = 0
    left: int = 0
    smoke: bool = False
