"""May a new segment go on with this run? Its world, parameters, seed and conditions must be the run's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stateplay_rl.config.base import changed_keys, config_dict
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.stages.train_nft.inputs import HAND_MADE, TrainInputs
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import Manifest, manifest_sha256, read_manifest

SAMPLER = tuple(
    f"sampling.{name}" for name in ("solver", "cache", "cache_every", "cache_threshold", "shift", "latents")
)
"""Settings that the sampler's name is made of: one run holds candidates of one sampler."""
MUST_KEEP = {"c": ("world", "mode", "seed", *SAMPLER), HAND_MADE: ("world", "mode", *SAMPLER)}
"""Settings that a later segment cannot change: live, old and moments would be of something else. `--extend`: all."""
OF_OTHER_STAGES = ("stage", "stage_a_limit", "stage_c_conditions", "audits", "reward_model", "force_without_gate")
NOT_MEANING = (*OF_OTHER_STAGES, "extend", "preflight")
"""Settings that say which stage may run and how long, not what stage A computes."""


def refuse_other_run(config: TrainNftConfig, inputs: TrainInputs, out: Path) -> None:
    """A new segment goes on with the run's own world, parameters, seed and conditions.

    Raises:
        UsageError: with what differs.
    """
    manifest = read_manifest(out, schema="run")
    refuse_other_conditions(manifest, inputs, out)
    changed = changes_of_meaning(manifest.config, config)
    keep = MUST_KEEP.get(inputs.kind(config))
    if keep is not None:
        changed = {key: values for key, values in changed.items() if key in keep}
    refuse_changes(changed, out)


def refuse_other_conditions(manifest: Manifest, inputs: TrainInputs, where: Path) -> None:
    """Raise UsageError unless the conditions are those that `where` was begun with."""
    recorded, given = manifest.inputs["conditions"].sha256, manifest_sha256(inputs.conditions)
    if recorded != given:
        raise UsageError(
            f"{where} was begun with another input 'conditions' ({str(recorded)[:12]}, now {given[:12]})",
            "one pass is made over one conditions/ directory: give that of the run",
        )


def refuse_changes(changed: dict[str, tuple[Any, Any]], where: Path) -> None:
    """Raise UsageError when any setting (key -> before, now) differs from those that `where` was trained with."""
    if changed:
        lines = "\n".join(f"  {key}: was {old!r}, now {new!r}" for key, (old, new) in changed.items())
        raise UsageError(
            f"{where} was trained with another config:\n{lines}",
            f"go on with --config {where / layout.CONFIG}, or choose another --out",
        )


def changes_of_meaning(before: dict[str, Any], config: TrainNftConfig) -> dict[str, tuple[Any, Any]]:
    """Settings that differ from a run's and decide what it computes."""
    free = (*TrainNftConfig.resume_may_change, *NOT_MEANING)
    return {
        key: values
        for key, values in changed_keys(before, config_dict(config)).items()
        if not any(key == name or key.startswith(f"{name}.") for name in free)
    }
