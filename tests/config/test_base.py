"""Configs: defaults, file, overrides, and messages that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, ValidationError

from stateplay_rl.config.base import (
    FrozenConfig,
    changed_keys,
    config_dict,
    dump_config,
    load_config,
    valid_keys,
)
from stateplay_rl.errors import EXIT_INPUT, EXIT_USAGE, InputError, UsageError


class Loss(FrozenConfig):
    beta_nft: float = Field(1.0, gt=0)
    mode: Literal["signed", "reward"] = "signed"


class Train(FrozenConfig):
    loss: Loss = Loss()
    seed: int = 0
    classes: tuple[str, ...] = ()
    sampler: Loss | None = None


def write(folder: Path, text: str) -> Path:
    file = folder / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults_then_file_then_overrides_then_flags(tmp_path: Path) -> None:
    file = write(tmp_path, "seed: 3\nloss: {beta_nft: 2.0, mode: reward}\n")
    config = load_config(Train, file, ["loss.beta_nft=0.5", "classes=[normal, result_win]"], {"seed": 9})
    assert config == Train(seed=9, loss=Loss(beta_nft=0.5, mode="reward"), classes=("normal", "result_win"))
    assert load_config(Train) == Train()


def test_the_resolved_config_reads_back_equal(tmp_path: Path) -> None:
    config = Train(seed=4, classes=("ü",), sampler=Loss(mode="reward"))
    assert load_config(Train, write(tmp_path, dump_config(config))) == config
    assert config_dict(config)["sampler"] == {"beta_nft": 1.0, "mode": "reward"}


def test_an_override_may_open_an_optional_part() -> None:
    assert load_config(Train, None, ["sampler.beta_nft=3"]).sampler == Loss(beta_nft=3.0)
    assert load_config(Train, None, ["sampler=null"]).sampler is None


@pytest.mark.parametrize(
    ("override", "named", "hint"),
    [
        ("sede=1", "'sede'", "'seed'"),
        ("loss.beta=1", "'loss.beta'", "'loss.beta_nft'"),
        ("beta_nft=1", "'beta_nft'", "'loss.beta_nft'"),
        ("zzz=1", "'zzz'", "valid keys: loss, seed, classes, sampler"),
    ],
)
def test_unknown_keys_name_the_nearest(override: str, named: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"unknown config key {named}") as caught:
        load_config(Train, None, [override])
    assert hint in caught.value.hint
    assert caught.value.exit_code == EXIT_USAGE


def test_unknown_keys_of_a_file_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown config key 'loss.mod' in .*run\.yaml"):
        load_config(Train, write(tmp_path, "loss: {mod: reward}"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=many", "config key 'seed': .*valid integer.*got 'many'"),
        ("loss.beta_nft=0", "config key 'loss.beta_nft': .*greater than 0.*got 0"),
        ("loss.beta_nft=.nan", "finite"),
        ("loss.mode=both", "'signed' or 'reward'"),
        ("loss=3", "config key 'loss'"),
    ],
)
def test_wrong_values_name_the_key_and_the_value(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_config(Train, None, [override])


@pytest.mark.parametrize("override", ["seed", "=3", "loss..mode=a", ".seed=1", "seed={", "seed.x.y=1\nseed: ["])
def test_malformed_overrides(override: str) -> None:
    with pytest.raises(UsageError):
        load_config(Train, None, [override])


def test_an_override_below_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match="'seed' holds a value"):
        load_config(Train, None, ["seed=1", "seed.x=2"])


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "just text", "seed: [", "1: 2", "seed: 1\nseed: 2\n", "seed: !!python/x 1"]
)
def test_files_that_are_no_mapping_are_bad_input(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"run\.yaml") as caught:
        load_config(Train, write(tmp_path, text))
    assert caught.value.exit_code == EXIT_INPUT


def test_missing_binary_empty_and_huge_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read config"):
        load_config(Train, tmp_path / "no.yaml")
    assert load_config(Train, write(tmp_path, "")) == Train()
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00seed")
    with pytest.raises(InputError, match="not valid YAML"):
        load_config(Train, tmp_path / "b.yaml")
    with pytest.raises(InputError, match="at most"):
        load_config(Train, write(tmp_path, "#" * (1 << 20) + "\n"))


def test_configs_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Train().seed = 2  # type: ignore[misc]


def test_keys_and_changes() -> None:
    assert valid_keys(Train)[:4] == ["loss", "loss.beta_nft", "loss.mode", "seed"]
    assert "sampler.mode" in valid_keys(Train)
    changes = changed_keys({"a": {"b": 1, "c": 2}, "d": 1}, {"a": {"b": 1, "c": 3}, "e": [1]})
    assert changes == {"a.c": (2, 3), "d": (1, None), "e": (None, [1])}


def test_yaml_that_does_not_parse_is_named_by_line(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("seed: 1\nloss: {mode: [}\n")
    with pytest.raises(InputError) as caught:
        load_config(Train, file)
    assert "c.yaml is not valid YAML: line 2, column" in caught.value.what
    assert "byte string" not in caught.value.what


def test_a_missing_key_says_how_to_give_it() -> None:
    class Needs(FrozenConfig):
        worlds: str

    with pytest.raises(UsageError) as caught:
        load_config(Needs)
    assert caught.value.what == "config key 'worlds' is needed"
    assert "--set KEY=VALUE" in caught.value.hint


def test_a_key_that_resembles_nothing_gets_the_list_of_keys() -> None:
    with pytest.raises(UsageError) as caught:
        load_config(Train, overrides=["xyzzy=1"])
    assert caught.value.hint == "valid keys: loss, seed, classes, sampler"
