"""Wrappers in front of a key name, taken off in a loop until none is left. No torch here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

PREFIXES = ("module.", "_orig_mod.", "pipe.", "dit.", "model.", "diffusion_model.", "base_model.model.")
"""Wrappers in front of a name, in any nesting."""

CONTAINERS = ("state_dict.", "model_state_dict.")
"""Dictionaries that torch files wrap their weights in."""

INNER_WRAPPERS = re.compile(r"(?<=\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Wrappers around single blocks stand in the middle of a name."""


def strip_name(name: str) -> tuple[str, str]:
    """A name without its wrappers, and what was removed from its front."""
    rest = name
    while True:
        prefix = next((p for p in (*PREFIXES, *CONTAINERS) if rest.startswith(p) and len(rest) > len(p)), None)
        if prefix is None:
            break
        rest = rest.removeprefix(prefix)
    return INNER_WRAPPERS.sub("", rest), name.removesuffix(rest)


@dataclass(frozen=True)
class BareNames:
    """Names of one checkpoint without their wrappers.

    Args:
        original: bare name -> name in the file.
        removed: removed text (`module.dit.`, `*._orig_mod.`) -> number of names.
        collisions: bare names that two names ended up with; the first one is kept.
    """

    original: dict[str, str] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    collisions: tuple[str, ...] = ()


def bare_names(names: Iterable[str]) -> BareNames:
    """Strip all names of a checkpoint, with the map kept."""
    original: dict[str, str] = {}
    removed: Counter[str] = Counter()
    collisions: list[str] = []
    for name in names:
        bare, prefix = strip_name(name)
        if prefix:
            removed[prefix] += 1
        inner = INNER_WRAPPERS.findall(name.removeprefix(prefix))
        if inner:
            removed["*." + "".join(sorted(set(inner)))] += 1
        if bare in original:
            collisions.append(bare)
        else:
            original[bare] = name
    return BareNames(original, dict(removed), tuple(collisions))
