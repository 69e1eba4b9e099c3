"""The fault table names its tests: each row of `docs/reliability.md` leads to tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
FAULTS = (
    "SIGKILL",
    "power loss",
    "disk full",
    "API",
    "constant, inverted",
    "damaged inputs",
    "pickle",
    "2^63",
    "zip bomb",
    "path traversal",
    "prompt injection",
    "HTML",
    "secrets",
    "GPU out of memory",
    "rank",
    "two processes on one directory",
    "clock",
    "upgrade",
)
"""A word of every row that a user of long runs must find an answer to."""


def rows() -> list[tuple[str, str, str]]:
    """(fault, what happens, tested by) of every row of the first table."""
    table = PAGE.read_text().partition("\n## ")[0]
    cells = [line.strip().strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    found = [tuple(cell.strip() for cell in row) for row in cells if not set(row[0]) <= set("- ")]
    assert all(len(row) == 3 for row in found)
    return [(row[0], row[1], row[2]) for row in found if row[0] != "fault"]


def defined(file: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))


@pytest.mark.parametrize(("fault", "then", "tests"), rows(), ids=[row[0][:60] for row in rows()])
def test_each_row_names_tests_that_exist(fault: str, then: str, tests: str) -> None:
    assert then, fault
    everywhere = {name for file in (ROOT / "tests").rglob("test_*.py") for name in defined(file)}
    references = re.findall(r"`([^`]+)`", tests)
    files = 0
    for reference in references:
        path, _, name = reference.partition("::")
        if path.startswith("test_"):
            assert path in everywhere, f"{fault}: {path} is not a test"
            continue
        target = ROOT / path
        assert target.exists(), f"{fault}: {path} does not exist"
        files += 1
        assert not name or name in defined(target), f"{fault}: {reference} does not exist"
    assert files or any(r.startswith("test_") for r in references), f"{fault}: no test is named"


@pytest.mark.parametrize("word", FAULTS)
def test_no_fault_is_left_out(word: str) -> None:
    assert any(word.lower() in fault.lower() for fault, _, _ in rows()), word
