"""Exceptions and exit codes: one hierarchy, each class also a standard-library error.

Exit codes: 0 done, 1 a bug, 2 wrong usage, 3 bad input, 4 a check failed, 5 something
outside failed and the work can be resumed, 130 interrupted.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_INPUT = 3
EXIT_CHECK = 4
EXIT_OUTSIDE = 5
EXIT_INTERRUPTED = 130


class SprlError(Exception):
    """Anything that a user can cause or must know: what was found, where, what to run next.

    Args:
        what: What was found and where (file, field, value).
        hint: The next command to run or the setting to change; may be empty.
    """

    exit_code = EXIT_BUG

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n  -> {self.hint}" if self.hint else self.what


class UsageError(SprlError, ValueError):
    """The command line or the config asks for something that is not possible."""

    exit_code = EXIT_USAGE


class InputError(SprlError, ValueError):
    """An input file or directory is missing, foreign or of the wrong content."""

    exit_code = EXIT_INPUT


class CorruptionError(InputError):
    """A stored file does not match its recorded hash, schema or length."""


class UnsealedError(InputError):
    """A directory without a manifest was given where a finished one is needed."""


class OutputError(UsageError):
    """The output path is unusable: not empty, foreign, overlapping with an input, or locked."""


class CheckError(SprlError, AssertionError):
    """A check ran and failed (verify, audit-ckpt, a gate)."""

    exit_code = EXIT_CHECK


class OutsideError(SprlError, OSError):
    """Something outside failed (disk, API, another rank); the work can be resumed."""

    exit_code = EXIT_OUTSIDE


class JudgeDownError(OutsideError):
    """A judge cannot be reached now; the same question asked later may well be answered."""


class MissingExtraError(UsageError, ImportError):
    """An optional dependency group is not installed."""


class UnparsedAnswer(SprlError, ValueError):
    """A judge's answer holds no valid set of scores.

    Args:
        reason: One of the codes of the answer parser (``empty``, ``no_json``, ``labels``, ...).
        detail: What was seen, for people.
    """

    exit_code = EXIT_INPUT

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"unparsed answer: {reason}" + (f" ({detail})" if detail else ""))
        self.reason = reason
        self.detail = detail
