"""The environment of a check's child processes: CPU only, one thread each, this package importable."""

from __future__ import annotations

import os
from pathlib import Path

import stateplay_rl

_LAUNCH_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
)


def cpu_environment() -> dict[str, str]:
    """A copy of this process's environment, without its own place in a launch.

    `accelerate` starts a single process on a CPU unless told to use it, and two processes with several
    threads each on two cores are ten times slower than with one.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _LAUNCH_VARIABLES}
    root = str(Path(stateplay_rl.__file__).resolve().parents[1])
    paths = [root, *filter(None, [environment.get("PYTHONPATH")])]
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(paths),
        "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
