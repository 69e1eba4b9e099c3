"""Where the student's Triton kernels can be run: on a GPU, or anywhere in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.device_count() else "cpu")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
runs_kernels = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None or (DEVICE.type == "cpu" and not INTERPRETED),
        reason="needs a GPU, or Triton with TRITON_INTERPRET=1",
    ),
]
