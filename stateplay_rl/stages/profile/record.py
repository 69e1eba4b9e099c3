"""What `profile.json` holds, part by part, as it is measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Record:
    """What `profile.json` holds, as it grows.

    Args:
        began: monotonic time of the start.
        limit: seconds after which no part begins; None: no limit.
    """

    began: float
    limit: float | None
    values: dict[str, Any] = field(default_factory=dict)

    def part(self, name: str, work: Callable[[], Any]) -> None:
        """Keep the result of one part; without memory, a kernel or time, keep the reason instead."""
        if self.out_of_time:
            self.values[name] = {"left_out": "out of time"}
            return
        try:
            self.values[name] = work()
        except (torch.OutOfMemoryError, RuntimeError, AssertionError) as error:
            self.values[name] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0]}"}

    @property
    def out_of_time(self) -> bool:
        """Whether the limit has passed."""
        return self.limit is not None and time.monotonic() - self.began > self.limit
