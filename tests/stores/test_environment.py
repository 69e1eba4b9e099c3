"""Facts for manifests, without importing the libraries."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from stateplay_rl.stores import environment

ROOT = Path(__file__).resolve().parents[2]


def test_versions_are_the_installed_ones() -> None:
    versions = environment.software_versions()
    assert versions["torch"] == importlib.metadata.version("torch")
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_library_that_is_not_installed_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LIBRARIES", ("no-such-library",))
    assert environment.library_versions() == {"no-such-library": None}


def test_cuda_version_agrees_with_torch() -> None:
    import torch

    assert environment.cuda_version() == torch.version.cuda


def test_world_size_comes_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "7")
    assert environment.world_size() == 7


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from stateplay_rl.stores import manifest, environment; environment.software_versions();"
        "environment.gpu_names(); print([m for m in ('torch', 'numpy', 'pyarrow', 'av') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
