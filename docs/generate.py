"""Write docs/commands.md from the code, and check that the documents agree with the code.

Checked: every command and option has a help text; commands.md is up to date; in README.md and docs/ every
relative link leads to a file and every `make` target exists.

Usage: python docs/generate.py [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from stateplay_rl.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ROOT / "docs" / "commands.md"
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_MAKE = re.compile(r"\bmake ([a-z][a-z-]*)")
_TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
_SHELL_COMPLETION = ("--install-completion", "--show-completion")


def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """A command and all below it, as (full name, command)."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, f"{path} {name}")


def parameters(command: Any) -> Iterator[tuple[str, str, str, str]]:
    """Kind, name as typed, help and default of each documented parameter."""
    for parameter in command.params:
        if parameter.opts[0] in _SHELL_COMPLETION:
            continue
        kind = str(parameter.param_type_name)
        opts = [*parameter.opts, *parameter.secondary_opts]
        name = ", ".join(opts) if kind == "option" else parameter.name.upper()
        yield kind, name, (parameter.help or "").strip(), default_text(parameter)


def default_text(parameter: Any) -> str:
    """Default of a parameter for people; empty when it says nothing."""
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value is False or value == () or value == [] or callable(value):
        return ""
    return str(value)


def render() -> tuple[str, list[str]]:
    """Text of commands.md, and the names that lack a help text."""
    lines = ["# Commands", "", "Written by `make docs` from the code; do not edit.", ""]
    missing: list[str] = []
    for path, command in walk(get_command(app), "sprl"):
        text = " ".join((command.help or "").split())
        if not text:
            missing.append(path)
        lines += [f"## `{path}`", "", text, ""]
        rows = list(parameters(command))
        missing += [f"{path}: {name}" for _, name, help_text, _ in rows if not help_text]
        if rows:
            lines += ["| parameter | default | meaning |", "| --- | --- | --- |"]
            lines += [f"| `{name}` | {cell(default)} | {cell(text)} |" for _, name, text, default in rows]
            lines.append("")
    return "\n".join(lines), missing


def cell(text: str) -> str:
    """Text that is safe in a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def document_problems() -> Iterator[str]:
    """Broken relative links and unknown make targets of the documents."""
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    for document in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        text = document.read_text(encoding="utf-8")
        where = document.relative_to(ROOT)
        for link in _LINK.findall(text):
            path = link.partition("#")[0]
            if path and "://" not in path and not (document.parent / path).exists():
                yield f"{where}: link to {link} leads nowhere"
        for code in _CODE.findall(text):
            for target in _MAKE.findall(code):
                if target not in targets:
                    yield f"{where}: `make {target}` is no target of the Makefile"


def main() -> int:
    """Write or check; returns 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing, fail when something is stale")
    check = parser.parse_args().check
    text, missing = render()
    problems = [f"no help text: {name}" for name in missing]
    if not check:
        COMMANDS.write_text(text, encoding="utf-8")
    elif not COMMANDS.is_file() or COMMANDS.read_text(encoding="utf-8") != text:
        problems.append(f"{COMMANDS.relative_to(ROOT)} is stale: run `make docs`")
    if not (ROOT / "README.md").is_file():
        problems.append("README.md is missing")
    problems += document_problems()
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
