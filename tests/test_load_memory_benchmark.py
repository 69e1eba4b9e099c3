"""`examples/benchmarks/load_memory.py` at arena's size: it writes files that the loader knows, and loads them all."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import benchmark


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return benchmark("load_memory")


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
