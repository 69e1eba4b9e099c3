"""Parts of `student_9b.py`: single kernels at real size, and where the device's time goes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from stateplay_rl.reward_model import delta_rule, fused
from stateplay_rl.triton_launch import triton_usable

KINDS = {
    "delta rule": r"^(unit_rows|systems|invert|solve|states|outputs|written|values|reads|keys)|trsm",
    "fused norms, gates, convolutions": r"^norm_|^gated_|^convolution_",
    "attention": r"flash|fmha|sdpa|attention|few_queries",
    "products": r"gemm|nvjet|cutlass|xmma|splitk|dot_kernel|addmm|aten::mm|aten::bmm",
    "dropout": r"dropout|philox|distribution|bernoulli",
    "copies": r"memcpy|memset|copy|cat",
    "element by element": r"elementwise|vectorized|reduce|softmax|scan|index|gather|scatter",
}
"""Names of kernels by what they do, the first match counts."""
MOST_ROWS = 40


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds_of(device: torch.device, work: Callable[[], object], repeats: int = 2) -> float:
    """The last of some runs: the first ones load and compile kernels."""
    taken = 0.0
    for _ in range(repeats):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        taken = time.perf_counter() - started
    return round(taken, 5)


def profile(device: torch.device, work: Callable[[], object]) -> dict[str, Any]:
    """Device milliseconds of one piece of work, by kind and by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    started = time.perf_counter()
    with profiler(activities=[activity]) as recorded:
        work()
        synchronise(device)
    wall = time.perf_counter() - started
    # On a GPU the host's own calls have no device time.
    name = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    rows = sorted(((getattr(e, name) / 1e3, e.count, e.key) for e in recorded.key_averages()), reverse=True)
    kinds: dict[str, float] = {}
    for milliseconds, _, key in rows:
        kind = next((k for k, pattern in KINDS.items() if re.search(pattern, key, re.IGNORECASE)), "other")
        kinds[kind] = kinds.get(kind, 0.0) + milliseconds
    return {
        "wall_seconds_with_profiler": round(wall, 3),
        "device_milliseconds": round(sum(row[0] for row in rows), 1),
        "by_kind": {kind: round(ms, 1) for kind, ms in sorted(kinds.items(), key=lambda item: -item[1])},
        "kernels": [{"ms": round(ms, 2), "calls": calls, "name": key[:120]} for ms, calls, key in rows[:MOST_ROWS]],
    }


def check_kernels(
    device: torch.device, dtype: torch.dtype, width: int, errors: tuple[type[Exception], ...]
) -> dict[str, dict[str, Any]]:
    """Every available rule and the fused functions against their definitions, outputs and gradients."""
    checks: dict[str, Callable[[], dict[str, Any]]] = {
        name: lambda rule=rule: asdict(delta_rule.check_rule(rule, device, dtype, width=width))
        for name, rule in available_rules(device).items()
    }
    if triton_usable(device):
        checks["fused"] = lambda: fused.check_fused(device, dtype)
    found = {}
    for name, check in checks.items():
        try:
            found[name] = check()
        except errors as error:
            found[name] = {"error": f"{type(error).__name__}: {error!s:.600}"}
    return found


def available_rules(device: torch.device) -> dict[str, Any]:
    """The delta rules that can run here."""
    rules: dict[str, Any] = {"chunked": delta_rule.chunked_delta_rule}
    if triton_usable(device):
        from stateplay_rl.reward_model.delta_triton import triton_delta_rule

        rules["triton"] = triton_delta_rule
    if device.type == "cuda" and delta_rule.fla_installed():
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        rules["fla"] = chunk_gated_delta_rule
    return rules


def time_rules(
    device: torch.device, tokens: int, heads: int, width: int, dtype: torch.dtype, names: Sequence[str]
) -> dict[str, Any]:
    """Seconds of one layer's delta rule, forward and forward with backward, of the named rules."""
    draw = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(1, tokens, *shape, device=device, dtype=dtype, generator=draw)

    q, k, v = (drawn(heads, width).requires_grad_() for _ in range(3))
    g, beta = -F.softplus(drawn(heads).float()), drawn(heads).sigmoid()
    direction = drawn(heads, width)
    found: dict[str, Any] = {}

    def forward(rule: Any) -> Tensor:
        out: Tensor = rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)[0]
        return out

    def both(rule: Any) -> None:
        torch.autograd.grad(forward(rule), (q, k, v), direction)

    def without_gradient(rule: Any) -> None:
        with torch.no_grad():
            forward(rule)

    for name, rule in available_rules(device).items():
        if name not in names:
            continue
        found[name] = {
            "forward": seconds_of(device, lambda rule=rule: without_gradient(rule)),
            "both": seconds_of(device, lambda rule=rule: both(rule)),
        }
        if name == "triton":
            found["triton_profile"] = profile(device, lambda rule=rule: both(rule))
    return found


def time_attention(
    device: torch.device, tokens: int, heads: int, key_heads: int, width: int, dtype: torch.dtype,
    errors: tuple[type[Exception], ...],
) -> dict[str, Any]:  # fmt: skip
    """Seconds of one layer's causal attention by kernel, forward and forward with backward."""
    draw = torch.Generator(device).manual_seed(0)

    def drawn(count: int) -> Tensor:
        return torch.randn(1, count, tokens, width, device=device, dtype=dtype, generator=draw).requires_grad_()

    q, k, v = drawn(heads), drawn(key_heads), drawn(key_heads)
    direction = torch.randn(q.shape, device=device, dtype=dtype, generator=draw)

    def forward() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def without_gradient() -> None:
        with torch.no_grad():
            forward()

    found: dict[str, Any] = {}
    kernels = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    if device.type != "cuda":
        kernels = {"plain": SDPBackend.MATH}
    for name, kernel in kernels.items():
        for part, work in (
            ("forward", without_gradient),
            ("both", lambda: torch.autograd.grad(forward(), (q, k, v), direction)),
        ):
            try:
                with sdpa_kernel(kernel):
                    found[f"{name}_{part}"] = seconds_of(device, work)
            except errors as error:
                found[f"{name}_{part}"] = f"{type(error).__name__}: {error!s:.200}"
    return found
