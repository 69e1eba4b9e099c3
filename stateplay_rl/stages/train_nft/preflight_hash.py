"""Identity of a training's settings for `verify preflight` and `verify resume`: what was looked at is what will run."""

from __future__ import annotations

from stateplay_rl.config.base import config_dict
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.stores.atomic import sha256_json

NOT_IN_PREFLIGHT = ("preflight", "plan", "judging", "tracker", "keep_checkpoints")
"""Settings that do not change what a preflight looked at."""


def preflight_config(config: TrainNftConfig) -> str:
    """Hash of what a preflight looked at: this very config, without where its own record lies."""
    values = {key: value for key, value in config_dict(config).items() if key not in NOT_IN_PREFLIGHT}
    return sha256_json(values)
