"""``sprl train-rm``: not part of this version, and says so."""

from __future__ import annotations

import typer

from stateplay_rl.errors import UsageError

# Whatever arguments are given, the answer is the same.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}


def command(context: typer.Context) -> None:
    """Train the student judge on saved groups and scores (comes later: exits with 2)."""
    raise UsageError(
        "`sprl train-rm` is not part of this version: training the student judge comes later",
        "train the world model with `sprl train-nft`; groups and scores saved now can be used then",
    )
