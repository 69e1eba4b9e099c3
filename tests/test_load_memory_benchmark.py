"""`examples/benchmarks/load_memory.py` at arena's size: it writes files that the loader knows, and loads them all."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "benchmarks" / "load_memory.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("load_memory", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["load_memory"] = module
    spec.loader.exec_module(module)
    return module


def test_both_parts_are_loaded_and_counted(script: ModuleType, tmp_path: Path) -> None:
    sizes = script.Sizes("arena", layers=2, text_layers=1)
    script.write_transformer(tmp_path, sizes)
    script.write_text(tmp_path, sizes)
    assert len(list((tmp_path / "base").glob("*.safetensors"))) == 3
    for part in script.PARTS:
        found = script.measure(part, tmp_path, sizes)
        parameters = list(script.load(part, tmp_path, sizes).parameters())
        assert not any(parameter.is_meta for parameter in parameters)
        assert found["model_bytes"] == sum(parameter.nbytes for parameter in parameters) > 0
        assert found["peak_bytes"] >= 0
