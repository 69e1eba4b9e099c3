"""`examples/benchmarks/parts.py` at arena's size: every line is measured or says why it does not run here."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[1] / "examples" / "benchmarks" / "parts.py"


@pytest.mark.slow
def test_every_part_runs(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("parts", FILE)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    out = tmp_path / "parts.json"
    script.main(["--out", str(out), "--preset", "arena", "--device", "cpu", "--frames", "5", "--repeats", "1"])
    results = json.loads(out.read_text())
    assert set(results) == {"vae", "convolutions", "passes", "block"}
    failed = {name for part in results.values() for name, line in part.items() if "failed" in line}
    assert all("CUDNN" in name or "EFFICIENT" in name for name in failed), failed
    assert len(results["vae"]) > len(script.CHUNKS)
    assert results["vae"]["decode, its kernels"]["kinds"]
