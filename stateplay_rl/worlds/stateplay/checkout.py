"""A checkout on disk and in this process: commit, dirty state, code hash, import of its package."""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from stateplay_rl.errors import InputError
from stateplay_rl.worlds.stateplay.symbols import PACKAGE, REFERENCE_COMMIT, SymbolMap

GIT_SECONDS = 30
EULER = "this package's Euler loop over the checkout's model function"


@dataclass(frozen=True)
class CheckoutFacts:
    """What is on record about a checkout.

    Args:
        path: as the world file names it.
        commit: full hash; None when it is no git repository.
        dirty: whether tracked files differ from the commit or untracked Python files lie in the package.
        code_sha256: over names and bytes of all Python files of the package.
    """

    path: Path
    commit: str | None
    dirty: bool | None
    code_sha256: str

    @property
    def is_reference(self) -> bool:
        """Whether this is the commit that the adapter was written against, unchanged."""
        return self.commit is not None and self.commit.startswith(REFERENCE_COMMIT) and not self.dirty

    def record(self, symbols: SymbolMap) -> dict[str, Any]:
        """For manifests: JSON values. A sampler of the checkout is compared when the world is loaded, not here."""
        own = symbols.found.get("sampler")
        return {
            "path": str(self.path),
            "commit": self.commit,
            "dirty": self.dirty,
            "code_sha256": self.code_sha256,
            "reference_commit": REFERENCE_COMMIT,
            "is_reference": self.is_reference,
            "symbols": {part: definition.where for part, definition in symbols.found.items()},
            "signatures": symbols.signatures(),
            "differences": list(symbols.differences),
            "sampler": f"{own.where}, not compared yet" if own else EULER,
        }


def package_root(checkout: Path) -> Path:
    """The folder in a checkout that holds the package `diffsynth`.

    Raises:
        InputError: none of the usual places holds it.
    """
    for root in (checkout, checkout / "src"):
        if (root / PACKAGE / "__init__.py").is_file():
            return root
    raise InputError(f"no package {PACKAGE} in {checkout}", "give the root of the StatePlay checkout")


def facts_of(checkout: Path) -> CheckoutFacts:
    """Commit, dirty state and code hash.

    Raises:
        InputError: no package `diffsynth` in it.
    """
    package = package_root(checkout) / PACKAGE
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package).as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    commit = _git(checkout, "rev-parse", "HEAD")
    status = _git(checkout, "status", "--porcelain", "--untracked-files=normal")
    return CheckoutFacts(checkout, commit, None if status is None else bool(status), digest.hexdigest())


def _git(checkout: Path, *arguments: str) -> str | None:
    """Output of a git command, None outside a repository or without git. Reads only."""
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


_imported: dict[Path, str] = {}
"""Root of every checkout imported so far -> hash of its code then."""


def import_module(root: Path, name: str, code_sha256: str) -> ModuleType:
    """Import a module of the checkout's package in this process.

    Two checkouts, or one that was edited in between, may be used one after the other (parity): the modules of
    the one before are set aside, its classes stay alive in the objects made of them.

    Args:
        root: the folder that holds the package.
        name: dotted name.
        code_sha256: hash of the package's code: what is imported must be what is on record.

    Raises:
        InputError: the import fails, or another `diffsynth` of the environment comes first.
    """
    _set_aside_others(root, code_sha256)
    sys.path.insert(0, str(root))
    try:
        module = importlib.import_module(name)
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else ""
        raise InputError(
            f"importing {name} from {root} failed: {type(error).__name__}: {text}",
            "run sprl in the environment that the checkout was trained in",
        ) from error
    finally:
        sys.path.remove(str(root))
    origin = Path(str(module.__file__)).resolve()
    if not origin.is_relative_to((root / PACKAGE).resolve()):
        raise InputError(
            f"{name} came from {origin}, not from the checkout {root}",
            f"another {PACKAGE} is installed in this environment: uninstall it, or use the checkout's own environment",
        )
    return module


def _set_aside_others(root: Path, code_sha256: str) -> None:
    package = (root / PACKAGE).resolve()
    present = sys.modules.get(PACKAGE)
    ours = present is not None and Path(str(present.__file__)).resolve().is_relative_to(package)
    if ours and _imported.get(package) == code_sha256:
        return
    _imported[package] = code_sha256
    importlib.invalidate_caches()
    for name in [n for n in sys.modules if n == PACKAGE or n.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]
