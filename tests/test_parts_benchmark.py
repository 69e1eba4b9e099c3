"""`examples/benchmarks/parts.py` at arena's size: every line is measured or says why it does not run here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scripts import benchmark


@pytest.mark.slow
def test_every_part_runs(tmp_path: Path) -> None:
    script = benchmark("parts")
    out = tmp_path / "parts.json"
    script.main(["--out", str(out), "--preset", "arena", "--device", "cpu", "--frames", "5", "--repeats", "1"])
    results = json.loads(out.read_text())
    assert set(results) == {"vae", "convolutions", "passes", "block"}
    failed = {name for part in results.values() for name, line in part.items() if "failed" in line}
    assert all("CUDNN" in name or "EFFICIENT" in name for name in failed), failed
    assert len(results["vae"]) > len(script.CHUNKS)
    assert results["vae"]["decode, its kernels"]["kinds"]
