"""Where a piece of work spends the device's time: kernels by kind, and the most expensive ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from stateplay_rl.stages.profile.meter import Meter

KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("attention", "flash", "fmha", "sdpa", "efficient_attention", "text_forward", "text_backward")),
    ("own passes", ("residual_norm", "head_rows")),
    ("convolution", ("conv", "fprop", "implicit")),
    ("matrix product", ("gemm", "nvjet", "cutlass", "addmm", "matmul", "::mm", "::bmm", "linear", "xmma")),
    ("fused", ("triton",)),
    ("copies", ("copy", "memcpy", "memset", "cat", "pad", "transpose", "nchw", "nhwc")),
)
"""Kind -> parts of kernel names, tried in this order; what fits none is `other`."""
TOP = 12
NAME_LENGTH = 90


def summarise(meter: Meter, work: Callable[[], object]) -> dict[str, Any]:
    """One call under the profiler.

    Returns:
        `seconds` of kernels (on a CPU: of operators), `kinds` as shares of it, `top` names with calls and
        milliseconds, and `idle_share`: how much of the call's wall time no kernel ran.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if meter.on_gpu else [])]
    meter.wait()
    with profile(activities=activities) as run:
        wall = meter.once(work)
    kinds: dict[str, float] = defaultdict(float)
    rows: list[tuple[float, int, str]] = []
    for event in run.key_averages():
        own = event.self_device_time_total if meter.on_gpu else event.self_cpu_time_total
        if own <= 0 or (meter.on_gpu and event.device_type != DeviceType.CUDA):
            continue
        kinds[_kind(event.key)] += own
        rows.append((own, event.count, event.key))
    total = sum(kinds.values())
    return {
        "seconds": total / 1e6,
        "idle_share": max(0.0, 1 - total / 1e6 / wall) if wall else 0.0,
        "kinds": {kind: value / total for kind, value in sorted(kinds.items(), key=lambda item: -item[1])},
        "top": [
            {"name": name[:NAME_LENGTH], "calls": calls, "milliseconds": own / 1e3}
            for own, calls, name in sorted(rows, reverse=True)[:TOP]
        ],
    }


def _kind(name: str) -> str:
    lower = name.lower()
    # Compiled pointwise kernels are called after what they fuse, so they come first.
    if lower.startswith("triton_"):
        return "fused"
    return next((kind for kind, parts in KINDS if any(part in lower for part in parts)), "other")
