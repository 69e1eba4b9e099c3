"""Help is instant because nothing heavy is imported for it: asserted on modules, not on a clock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "diffusers", "transformers", "peft", "openai", "matplotlib", "pyarrow", "numpy", "av")
COMMANDS = [
    [],
    ["audit-ckpt"],
    ["build-conditions"],
    ["rollout"],
    ["score"],
    ["train-rm"],
    ["train-nft"],
    ["report"],
    ["verify"],
    ["verify", "install"],
    ["verify", "dir"],
    ["verify", "golden"],
    ["verify", "signal"],
]
CODE = """
import json, sys
from stateplay_rl.cli.main import main
code = main(sys.argv[1:] + ["--help"])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "sprl")
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", CODE, *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    code, modules = json.loads(result.stderr.splitlines()[-1])
    assert code == 0
    assert "Usage" in result.stdout
    assert [name for name in HEAVY if name in modules] == []
