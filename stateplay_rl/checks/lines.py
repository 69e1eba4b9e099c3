"""The result line of a check, and the runner that turns a check function into one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from stateplay_rl.errors import CheckError, SprlError
from stateplay_rl.stores.redaction import redact

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class CheckLine:
    """Result of one check.

    Args:
        detail: what was measured, what is wrong, or why it was skipped.
        todo: the next command or the setting to change, when it did not pass; may be empty.
    """

    name: str
    status: Status
    detail: str
    seconds: float = 0.0
    todo: str = ""


class NotChecked(Exception):
    """Raised by a check that cannot be made here; its text is the reason of the `skipped` line, `todo` its hint."""

    def __init__(self, reason: str, todo: str = "") -> None:
        super().__init__(reason)
        self.todo = todo


REINSTALL = "reinstall the package with its constraints file, then run this again"
UNEXPECTED = "no known cause: sprl verify install; if that passes, it is a bug, please report it"

CheckFunction = Callable[[], str]
"""Runs a check: returns what it measured, raises CheckError with what is wrong, NotChecked to skip."""


def run_check(name: str, function: CheckFunction) -> CheckLine:
    """Run one check. Any exception is a failure of that check, and of no other.

    Args:
        name: shown in the line.
        function: the check.
    """
    started = time.monotonic()
    status: Status = "passed"
    todo = ""
    try:
        detail = function()
    except NotChecked as error:
        status, detail, todo = "skipped", str(error), error.todo
    except SprlError as error:
        status, detail, todo = "failed", error.what, error.hint
    except Exception as error:  # noqa: BLE001 (an installation may be broken in any way: say how, go on)
        status, detail = "failed", f"{type(error).__name__}: {error}".splitlines()[0]
        todo = UNEXPECTED
    return CheckLine(name, status, redact(detail), round(time.monotonic() - started, 3), redact(todo))


def run_checks(checks: Sequence[tuple[str, CheckFunction]]) -> list[CheckLine]:
    """Run checks one after the other."""
    return [run_check(name, function) for name, function in checks]


def require(condition: bool, what: str, todo: str = REINSTALL) -> None:
    """Raise CheckError with `what` and `todo` unless the condition holds."""
    if not condition:
        raise CheckError(what, todo)
