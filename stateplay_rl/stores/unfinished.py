"""``unfinished.json``: who began a directory that has no manifest yet, and with what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.errors import CorruptionError
from stateplay_rl.stores import layout
from stateplay_rl.stores.foreign import checked, parse_json
from stateplay_rl.stores.sealed import InputRef


@dataclass(frozen=True)
class UnfinishedRecord:
    """What a resume must agree with. `earlier`: hashes of earlier manifests of an extended directory."""

    schema: str
    version: int
    run_id: str
    command: str
    config_sha256: str
    config: dict[str, Any]
    inputs: dict[str, InputRef]
    started_utc: str
    versions: dict[str, Any]
    earlier: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **vars(self),
            "inputs": {name: vars(ref) for name, ref in self.inputs.items()},
            "earlier": list(self.earlier),
        }

    def extra(self) -> dict[str, Any]:
        """What of this goes into the manifest's `extra`."""
        return {"earlier_manifests": list(self.earlier)} if self.earlier else {}


def read_unfinished(folder: Path) -> UnfinishedRecord:
    """The record of a begun directory.

    Raises:
        CorruptionError: damaged; the file and the field are named.
    """
    file = folder / layout.UNFINISHED
    hint = "start over with --overwrite"
    try:
        raw = parse_json(file.read_bytes())
        inputs = {name: checked(InputRef(**value)) for name, value in raw.pop("inputs").items()}
        record = UnfinishedRecord(inputs=inputs, earlier=tuple(raw.pop("earlier")), **raw)
        return checked(record)
    except KeyError as error:
        raise CorruptionError(f"{file} lacks field {error.args[0]!r}", hint) from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CorruptionError(f"{file} is damaged: {error}", hint) from error
