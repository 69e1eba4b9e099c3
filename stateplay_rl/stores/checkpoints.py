"""Checkpoints: ``step-<n>/`` folders that appear whole or not at all, and a text file naming the latest."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateplay_rl.errors import CorruptionError, InputError
from stateplay_rl.stores import atomic, layout
from stateplay_rl.stores.foreign import parse_json

if TYPE_CHECKING:
    from torch import Tensor

CHECKPOINT_VERSION = 1

_DEFAULT_KEEP = 3
_TENSOR_FILES = {"live": layout.LIVE_WEIGHTS, "old": layout.OLD_WEIGHTS, "optimizer": layout.OPTIMIZER}
_OPTIONAL_FILES = {"average": layout.AVERAGE_WEIGHTS}


@dataclass(frozen=True)
class CheckpointPayload:
    """What a resume needs.

    Args:
        live: trained parameters of the live policy by name, float32.
        old: the same of the old policy.
        optimizer: moments by name.
        average: the evaluation average by name; empty when there is none.
        state: counters, ledger position, log offsets, random states: plain JSON values.
    """

    live: Mapping[str, Tensor]
    old: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any] = field(default_factory=dict)
    average: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint. `sha256` is the hash of its ``state.json``, which holds those of its files."""

    step: int
    folder: Path
    payload: CheckpointPayload
    sha256: str


class CheckpointStore:
    """``run/checkpoints``.

    Args:
        root: the folder.
        keep: number of newest checkpoints that are kept, besides the best one.
    """

    def __init__(self, root: Path, keep: int = _DEFAULT_KEEP) -> None:
        if keep < 2:
            raise ValueError("keep at least 2 checkpoints: a damaged one needs a predecessor")
        self.root = root
        self.keep = keep

    def folder(self, step: int) -> Path:
        """Folder of a checkpoint."""
        return self.root / layout.checkpoint_folder(step)

    def steps(self) -> tuple[int, ...]:
        """Steps of the checkpoints on disk, ascending."""
        if not self.root.is_dir():
            return ()
        found = (layout.checkpoint_step(path.name) for path in self.root.iterdir() if path.is_dir())
        return tuple(sorted(step for step in found if step is not None))

    def latest(self) -> int | None:
        """Step that a resume starts from; None without any checkpoint."""
        named = self._pointer(layout.LATEST)
        if named is not None:
            return named
        # Killed between the first checkpoint's rename and the pointer: the folder is whole.
        steps = self.steps()
        return steps[-1] if steps else None

    def best(self) -> int | None:
        """Step that was marked as best."""
        return self._pointer(layout.BEST)

    def save(self, step: int, payload: CheckpointPayload, *, is_best: bool = False) -> Path:
        """Write a checkpoint, then move `latest`, then remove old ones.

        Raises:
            ValueError: NaN in `state`.
            OutsideError: disk full or read-only; earlier checkpoints stay valid.
        """
        names = {**_TENSOR_FILES, **{n: f for n, f in _OPTIONAL_FILES.items() if getattr(payload, n)}}
        parts = {name: getattr(payload, name) for name in names}
        needed = sum(tensor.nbytes for tensors in parts.values() for tensor in tensors.values())
        final = self.folder(step)
        atomic.require_space(final, needed)
        if final.exists():
            self._step_back(step)
        with atomic.atomic_dir(final, replace=True) as temp:
            files = {file: _save_tensors(temp / file, parts[name], final / file) for name, file in names.items()}
            value = {
                "version": CHECKPOINT_VERSION,
                "step": step,
                "state": dict(payload.state),
                "files": files,
            }
            atomic.write_json(temp / layout.CHECKPOINT_STATE, value)
        atomic.write_text(self.root / layout.LATEST, final.name + "\n")
        if is_best:
            atomic.write_text(self.root / layout.BEST, final.name + "\n")
        self._prune(step)
        return final

    def load(self, step: int | None = None) -> Checkpoint:
        """Read and verify a checkpoint.

        Args:
            step: which one; None for the latest.

        Raises:
            InputError: no such checkpoint, or a newer version.
            CorruptionError: damaged; the message names the file and offers the previous checkpoint.
        """
        chosen = self.latest() if step is None else step
        if chosen is None or not self.folder(chosen).is_dir():
            which = "checkpoint" if chosen is None else layout.checkpoint_folder(chosen)
            have = ", ".join(map(str, self.steps())) or "none"
            raise InputError(f"{self.root} has no {which} (steps: {have})", "choose one of these steps")
        folder = self.folder(chosen)
        hint = self._offer(chosen)
        value, sha256 = _read_state(folder / layout.CHECKPOINT_STATE, chosen, hint)
        names = {**_TENSOR_FILES, **{n: f for n, f in _OPTIONAL_FILES.items() if f in value["files"]}}
        tensors = {name: _load_tensors(folder / file, value["files"].get(file), hint) for name, file in names.items()}
        return Checkpoint(chosen, folder, CheckpointPayload(**tensors, state=value["state"]), sha256)

    def _step_back(self, step: int) -> None:
        """Before a checkpoint is replaced: `latest` must not name it while it is swapped."""
        earlier = [s for s in self.steps() if s < step]
        if earlier:
            atomic.write_text(self.root / layout.LATEST, layout.checkpoint_folder(earlier[-1]) + "\n")
        else:
            (self.root / layout.LATEST).unlink(missing_ok=True)

    def _offer(self, step: int) -> str:
        earlier = [s for s in self.steps() if s < step]
        if not earlier:
            return "there is no earlier checkpoint: restore it from a copy, or start over"
        return f"resume from the previous checkpoint, step {earlier[-1]}"

    def _pointer(self, name: str) -> int | None:
        file = self.root / name
        if not file.is_file():
            return None
        text = file.read_text(encoding="utf-8", errors="replace").strip()
        step = layout.checkpoint_step(text)
        if step is None:
            raise CorruptionError(
                f"{file} holds {text[:40]!r}, not a checkpoint's name",
                f"write one of {list(self.steps())} as step-<n>",
            )
        return step

    def _prune(self, newest: int) -> None:
        kept = {*[s for s in self.steps() if s <= newest][-self.keep :], newest, self.best()}
        for step in self.steps():
            if step not in kept and step < newest:
                # Renamed first: no half-deleted checkpoint under a valid name.
                gone = layout.temp_name(self.folder(step), "gone")
                shutil.rmtree(gone, ignore_errors=True)
                os.replace(self.folder(step), gone)
                shutil.rmtree(gone)


def _save_tensors(path: Path, tensors: Mapping[str, Tensor], final: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(plain, path)
    except SafetensorError as error:
        # safetensors reports a full disk as text only.
        match = re.search(r"os error (\d+)", str(error))
        code = int(match.group(1)) if match else errno.EIO
        raise OSError(code, str(error), str(final)) from error
    return {"size": path.stat().st_size, "sha256": atomic.sha256_file(path)}


def _read_state(file: Path, step: int, hint: str) -> tuple[dict[str, Any], str]:
    try:
        data = file.read_bytes()
        value = parse_json(data)
        version = value["version"]
        if version > CHECKPOINT_VERSION:
            what = f"{file} has version {version}, this sprl reads {CHECKPOINT_VERSION}"
            raise InputError(what, "upgrade stateplay-rl")
        if value["step"] != step or not isinstance(value["files"], dict) or "state" not in value:
            raise CorruptionError(f"{file}: fields 'step', 'files' or 'state' are wrong", hint)
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise CorruptionError(f"{file} is damaged: {error}", hint) from error
    return value, atomic.sha256_bytes(data)


def _load_tensors(file: Path, ref: Any, hint: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not file.is_file():
        raise CorruptionError(f"{file} is missing", hint)
    if not isinstance(ref, dict) or file.stat().st_size != ref.get("size"):
        raise CorruptionError(f"{file} has another size than {layout.CHECKPOINT_STATE} records", hint)
    if atomic.sha256_file(file) != ref.get("sha256"):
        raise CorruptionError(f"{file} does not match its sha256 in {layout.CHECKPOINT_STATE}", hint)
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (SafetensorError, ValueError) as error:
        raise CorruptionError(f"{file} is not readable safetensors: {error}", hint) from error
    return tensors
