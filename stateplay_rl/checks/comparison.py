"""Comparing computed values with stored ones, and the line that says how close they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores.foreign import parse_json

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class GoldenLine:
    """Result of one golden file.

    Args:
        file: the file's name.
        status: `passed`, `failed`, or `skipped` (then `detail` says why).
        largest_error: the largest error found; None when nothing was computed, and for a shape or NaN
            mismatch.
        tolerance: the error that still passes; 0 means exact.
        compared: number of values sets compared.
        detail: where the largest error lies, or the reason of a failure or skip.
        seconds: wall time.
    """

    file: str
    status: Status
    largest_error: float | None
    tolerance: float | None
    compared: int
    detail: str
    seconds: float = 0.0

    @classmethod
    def skipped(cls, file: str, reason: str) -> GoldenLine:
        """A file that was not checked."""
        return cls(file, "skipped", None, None, 0, reason)

    @classmethod
    def failed(cls, file: str, reason: str) -> GoldenLine:
        """A file that could not be compared at all, which is a failure."""
        return cls(file, "failed", None, None, 0, reason)


@dataclass
class Comparison:
    """Collects errors of one file against one tolerance.

    Args:
        tolerance: largest error that passes.
    """

    tolerance: float
    worst: float = 0.0
    where: str = ""
    compared: int = 0
    broken: list[str] = field(default_factory=list)

    def relative(self, name: str, got: Tensor, wanted: Tensor) -> None:
        """max|got - wanted| / max|wanted|; absolute where everything wanted is 0."""
        self._add(name, got, wanted, scaled=True)

    def absolute(self, name: str, got: Tensor, wanted: Tensor) -> None:
        """max|got - wanted|."""
        self._add(name, got, wanted, scaled=False)

    def elementwise(self, name: str, got: Tensor, wanted: Tensor) -> None:
        """max(|got - wanted| / |wanted|), and absolute where wanted is 0."""
        divisor = wanted.double().abs()
        divisor = torch.where(divisor > 0, divisor, torch.ones_like(divisor))
        self._add(name, got.double() / divisor, wanted.double() / divisor, scaled=False)

    def exact(self, name: str, got: object, wanted: object) -> None:
        """Equal or not; a difference is an error of 1."""
        self.compared += 1
        if got != wanted:
            self.broken.append(f"{name}: computed {_short(got)}, stored {_short(wanted)}")

    def _add(self, name: str, got: Tensor, wanted: Tensor, *, scaled: bool) -> None:
        self.compared += 1
        if got.shape != wanted.shape:
            self.broken.append(f"{name}: computed shape {list(got.shape)}, stored {list(wanted.shape)}")
            return
        if wanted.numel() == 0:
            self.broken.append(f"{name}: empty")
            return
        difference = float((got.double() - wanted.double()).abs().max())
        scale = float(wanted.double().abs().max()) if scaled else 1.0
        error = difference / scale if scale > 0 else difference
        if not error < float("inf"):
            self.broken.append(f"{name}: not finite")
        elif error > self.worst or not self.where:
            self.worst, self.where = error, name

    def line(self, file: str, note: str = "") -> GoldenLine:
        """The file's line. A file without anything to compare fails: it was taken for a golden file."""
        if self.broken:
            more = f" and {len(self.broken) - 1} more" if len(self.broken) > 1 else ""
            return GoldenLine(file, "failed", None, self.tolerance, self.compared, self.broken[0] + more)
        if self.compared == 0:
            return GoldenLine.failed(file, "holds nothing that can be compared")
        where = f"largest at {self.where}" if self.worst > 0 else "equal"
        status: Status = "passed" if self.worst <= self.tolerance else "failed"
        detail = f"{where}; {note}" if note else where
        return GoldenLine(file, status, self.worst, self.tolerance, self.compared, detail)


@dataclass(frozen=True)
class TensorFile:
    """Tensors and metadata of a safetensors file; a missing tensor is named."""

    path: Path
    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    def __getitem__(self, key: str) -> Tensor:
        if key not in self.tensors:
            raise InputError(f"{self.path.name} holds no tensor {key!r}", "export the case completely")
        return self.tensors[key]

    def cases(self) -> list[str]:
        """Prefixes before the last dot, sorted as they stand: `case0`, `case1`, ..."""
        return sorted({key.rpartition(".")[0] for key in self.tensors})


@dataclass(frozen=True)
class GoldenFolder:
    """A folder of golden files, and the real clips if there are any."""

    path: Path
    clips: Path | None

    def tensors(self, name: str) -> TensorFile:
        """All tensors of a file.

        Raises:
            InputError: the file is missing.
            CorruptionError: it is not a safetensors file.
        """
        path = self.path / name
        if not path.is_file():
            raise InputError(f"{name} is not in {self.path}", "export it beside the other files")
        try:
            with safe_open(str(path), framework="pt") as file:
                keys = list(file.keys())
                return TensorFile(path, {k: file.get_tensor(k) for k in keys}, dict(file.metadata() or {}))
        except SafetensorError as error:
            raise CorruptionError(f"{name} is not a readable safetensors file ({error})", "export it again") from error

    def json(self, name: str) -> Any:
        """The value of a JSON file."""
        path = self.path / name
        if not path.is_file():
            raise InputError(f"{name} is not in {self.path}", "export it beside the other files")
        try:
            return parse_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CorruptionError(f"{name} is not valid JSON ({error})", "export it again") from error

    @cached_property
    def clip_names(self) -> frozenset[str]:
        """Names of the clips at hand."""
        if self.clips is None or not self.clips.is_dir():
            return frozenset()
        return frozenset(child.name for child in self.clips.iterdir() if child.is_dir())

    def why_no_clips(self) -> str:
        """The reason of a skip for want of clips."""
        if self.clips is None:
            return "needs the real clips: set STATEPLAY_CLIPS or give --clips"
        return f"none of its clips lies in {self.clips}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
