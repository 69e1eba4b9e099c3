"""The user's own evaluators, out of their StatePlay checkout: what is there is called, what is missing is named.

`evaluation/hud/metrics.py:evaluate_clip` is the one that is known to exist. Its parameters are not public, so they are
read off its signature: known names get what they ask for, an unknown one without a default is reported and nothing is
called. Move-Acc and Att-Acc are looked for by name in the same folder. The checkout's code runs in this process: name
only a checkout whose code is trusted.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.errors import InputError
from stateplay_rl.stores.atomic import sha256_file

METRICS_FILE = Path("evaluation/hud/metrics.py")
CLIP_FUNCTION = "evaluate_clip"
ACTION_METRICS: Mapping[str, tuple[str, ...]] = {
    "Move-Acc": ("move_acc", "move_accuracy", "compute_move_acc", "compute_move_accuracy"),
    "Att-Acc": ("att_acc", "attack_acc", "attack_accuracy", "compute_att_acc", "compute_attack_accuracy"),
}
_SEARCHED = Path("evaluation")
_MAX_FILES = 200


@dataclass(frozen=True)
class ClipInputs:
    """What an evaluator may ask for; each under the names that such functions use."""

    video_path: Path
    frames_ThwC: NDArray[np.uint8]
    states: Mapping[str, NDArray[np.generic]]
    held_RK: NDArray[np.generic]
    actions_path: Path | None = None
    reference_path: Path | None = None
    fps: float = 20.0

    def named(self) -> dict[str, Any]:
        """Values by parameter name."""
        values: tuple[tuple[tuple[str, ...], Any], ...] = (
            (("video", "video_path", "clip", "clip_path", "pred_video", "pred_path", "path"), self.video_path),
            (("frames", "video_frames", "pred_frames"), self.frames_ThwC),
            (("states", "gt_states", "state", "gt", "ground_truth", "gt_state"), dict(self.states)),
            (("actions", "buttons", "held_actions"), self.held_RK),
            (("actions_path", "parquet", "parquet_path", "action_path", "gt_path"), self.actions_path),
            (("reference", "reference_path", "gt_video", "gt_video_path", "ref_path"), self.reference_path),
            (("fps",), self.fps),
        )
        return {name: value for names, value in values for name in names}


@dataclass(frozen=True)
class CheckoutMetrics:
    """What the checkout's evaluators said about a video.

    Args:
        values: flat metric names to numbers.
        missing: what was looked for and not found, or could not be called, with the reason.
        source_sha256: hash of the file that answered; empty if none.
    """

    values: Mapping[str, float]
    missing: Mapping[str, str]
    source_sha256: str = ""


@dataclass(frozen=True)
class StateplayEvaluator:
    """The evaluators of one checkout, found once.

    Args:
        checkout: the folder.
        functions: callables by metric name; `clip` is `evaluate_clip`.
        missing: what is not there, with the reason.
        source_sha256: hash of `evaluation/hud/metrics.py`, empty if it is missing.
    """

    checkout: Path
    functions: Mapping[str, Callable[..., Any]]
    missing: Mapping[str, str]
    source_sha256: str = ""
    name: str = field(default="stateplay", init=False)

    @classmethod
    def open(cls, checkout: Path) -> StateplayEvaluator:
        """Find the evaluators.

        Raises:
            InputError: the checkout is no folder, or its file raises while it is imported.
        """
        if not checkout.is_dir():
            raise InputError(f"no StatePlay checkout at {checkout}", "check evaluator.checkout")
        functions: dict[str, Callable[..., Any]] = {}
        missing: dict[str, str] = {}
        file = checkout / METRICS_FILE
        digest = ""
        if file.is_file():
            digest = sha256_file(file)
            module = _load(file, checkout)
            function = getattr(module, CLIP_FUNCTION, None)
            if callable(function):
                functions["clip"] = function
            else:
                missing[CLIP_FUNCTION] = f"{METRICS_FILE} has no function of this name"
        else:
            missing[CLIP_FUNCTION] = f"the checkout has no {METRICS_FILE}"
        for metric, names in ACTION_METRICS.items():
            found = _find(checkout, names)
            if found is None:
                missing[metric] = f"no function {' or '.join(names[:2])} below {_SEARCHED}/"
            else:
                functions[metric] = found
        return cls(checkout, functions, missing, digest)

    def evaluate(self, inputs: ClipInputs) -> CheckoutMetrics:
        """Run every evaluator that was found on one video; what fails on it is missing, with the reason.

        A long run must not end because somebody else's code stumbles over one video.
        """
        values: dict[str, float] = {}
        missing = dict(self.missing)
        for name, function in self.functions.items():
            arguments, unknown = _arguments(function, inputs)
            label = CLIP_FUNCTION if name == "clip" else name
            if unknown:
                missing[label] = f"asks for {', '.join(unknown)}, which is not known here"
                continue
            try:
                answer = function(**arguments)
            except Exception as error:  # noqa: BLE001 (any code of the user's)
                missing[label] = f"failed: {type(error).__name__}: {error}".splitlines()[0]
                continue
            numbers = _flat(answer, "" if name == "clip" else name)
            if not numbers:
                missing[label] = f"answered with {type(answer).__name__}, in which there is no number"
            values.update(numbers)
        return CheckoutMetrics(values, missing, self.source_sha256)


def _load(file: Path, checkout: Path) -> ModuleType:
    """Import a file of the checkout under a name of its own, with the checkout on the path meanwhile."""
    spec = importlib.util.spec_from_file_location(f"_stateplay_checkout_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} is no Python file", "check the checkout")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(checkout))
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(spec.name, None)
        raise InputError(
            f"{file} cannot be imported: {type(error).__name__}: {error}", "install what the checkout needs"
        ) from error
    finally:
        sys.path.remove(str(checkout))
    return module


def _find(checkout: Path, names: tuple[str, ...]) -> Callable[..., Any] | None:
    """A top-level function of one of these names below `evaluation/`; files without the name are not imported."""
    for file in sorted((checkout / _SEARCHED).rglob("*.py"))[:_MAX_FILES]:
        text = file.read_text(encoding="utf-8", errors="replace")
        for name in names:
            if f"def {name}(" in text:
                function = getattr(_load(file, checkout), name, None)
                if callable(function):
                    found: Callable[..., Any] = function
                    return found
    return None


def _arguments(function: Callable[..., Any], inputs: ClipInputs) -> tuple[dict[str, Any], list[str]]:
    """Keyword arguments by the function's own names, and the required ones that nobody knows."""
    known = inputs.named()
    arguments: dict[str, Any] = {}
    unknown: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is not parameter.POSITIONAL_ONLY and known.get(name) is not None:
            arguments[name] = known[name]
        elif parameter.default is parameter.empty:
            unknown.append(name)
    return arguments, unknown


def _flat(answer: object, prefix: str) -> dict[str, float]:
    """Numbers of a nested answer as flat names; what is not finite is left out."""
    if isinstance(answer, bool | np.bool_):
        return {prefix or "value": float(answer)}
    if isinstance(answer, int | float | np.number):
        return {prefix or "value": float(answer)} if math.isfinite(float(answer)) else {}
    if isinstance(answer, Mapping):
        flat: dict[str, float] = {}
        for key, value in answer.items():
            flat.update(_flat(value, f"{prefix}.{key}" if prefix else str(key)))
        return flat
    if dataclass_fields := getattr(answer, "__dataclass_fields__", None):
        return _flat({name: getattr(answer, name) for name in dataclass_fields}, prefix)
    return {}
