"""Finding, describing and refusing checkouts; filling their classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from stateplay_rl.config.base import load_config
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import InputError, UsageError
from stateplay_rl.worlds.load import load_world, require_policy
from stateplay_rl.worlds.stateplay.checkout import facts_of, import_module
from stateplay_rl.worlds.stateplay.symbols import REFERENCE_COMMIT, literal, map_symbols
from stateplay_rl.worlds.stateplay.world import CheckoutWorld
from stateplay_rl.worlds.world_files import resolve_world
from tests.worlds.stateplay.standin_world import MODEL_KWARGS, copy_checkout, git, write_checkout_world

PIPELINE = "diffsynth/pipelines/stateplay.py"
MODEL = "diffsynth/models/stateplay_dit.py"
CHECKPOINT = "step-4572.safetensors"


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def load(world_file: Path) -> Any:
    return load_world(resolve_world(str(world_file)))


def options(world_file: Path, **changes: Any) -> Path:
    """The world file with other checkout options or keys."""
    world = yaml.safe_load(world_file.read_text())
    for key, value in changes.items():
        if key in world["checkout_options"] or key in ("symbols", "model_fn_kwargs", "scheduler_kwargs"):
            world["checkout_options"][key] = value
        else:
            world[key] = value
    world_file.write_text(yaml.safe_dump(world))
    return world_file


def test_facts_name_commit_and_local_changes(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "checkout")
    clean = facts_of(checkout)
    assert clean.commit == git(checkout, "rev-parse", "HEAD")
    assert (clean.dirty, clean.is_reference) == (False, False)
    with (checkout / PIPELINE).open("a") as file:
        file.write("# changed\n")
    changed = facts_of(checkout)
    assert changed.dirty
    assert changed.code_sha256 != clean.code_sha256
    plain = copy_checkout(tmp_path / "plain", commit=False)
    assert (facts_of(plain).commit, facts_of(plain).dirty) == (None, None)
    assert facts_of(plain).code_sha256 == clean.code_sha256
    with pytest.raises(InputError, match="no package diffsynth"):
        facts_of(tmp_path)


def test_differences_are_printed_and_kept(
    tmp_path: Path, load_standin: Callable[..., CheckoutWorld], capsys: pytest.CaptureFixture[str]
) -> None:
    world = load_standin(commit=True)
    printed = capsys.readouterr().err
    assert f"the adapter was written against {REFERENCE_COMMIT}" in printed
    assert "LatentTransitionTokenizer" in printed
    record = world.facts["checkout"]
    assert world.facts["backend"] == "stateplay"
    assert record["reference_commit"] == REFERENCE_COMMIT
    assert len(record["commit"]) == 40
    assert record["dirty"] is False
    assert record["symbols"]["model_fn"].startswith("diffsynth.pipelines.stateplay:model_fn_stateplay_latent (")
    assert "keyboard_action" in record["signatures"]["model_fn"]["found"]
    assert set(record["signatures"]["model_fn"]["expected"]) <= set(record["signatures"]["model_fn"]["found"])
    assert any("transition_tokenizer: expected" in line for line in record["differences"])


def test_moved_and_renamed_parts(tmp_path: Path) -> None:
    world = write_checkout_world(tmp_path / "w")
    checkout = tmp_path / "w" / "checkout"
    (checkout / PIPELINE).rename(checkout / "diffsynth/pipelines/elsewhere.py")
    found = map_symbols(checkout, {})
    assert found.found["model_fn"].module == "diffsynth.pipelines.elsewhere"
    assert any("found diffsynth.pipelines.elsewhere:model_fn_stateplay_latent" in d for d in found.differences)
    assert load(world).facts["checkout"]["commit"] is None
    replace(checkout / "diffsynth/pipelines/elsewhere.py", "model_fn_stateplay_latent", "forward_latent")
    with pytest.raises(InputError, match="model_fn") as caught:
        load(world)
    assert "checkout_options" in caught.value.hint
    load(options(world, symbols={"model_fn": "diffsynth.pipelines.elsewhere:forward_latent"}))
    with pytest.raises(InputError, match="is not in the checkout"):
        map_symbols(checkout, {"model_fn": "diffsynth.pipelines.elsewhere:gone"})
    with pytest.raises(InputError, match="unknown parts"):
        map_symbols(checkout, {"modle": "a:b"})


def test_two_definitions_are_not_guessed_between(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "c", commit=False)
    text = (checkout / PIPELINE).read_text()
    (checkout / PIPELINE).unlink()
    for name in ("one", "two"):
        (checkout / f"diffsynth/pipelines/{name}.py").write_text(text)
    with pytest.raises(InputError, match="defined 2 times"):
        map_symbols(checkout, {})


def test_the_explicit_entry_point_is_never_called(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "c", commit=False)
    replace(checkout / PIPELINE, "model_fn_stateplay_latent", "model_fn_stateplay")
    with pytest.raises(InputError, match="model_fn_stateplay_latent is not there"):
        map_symbols(checkout, {})
    with pytest.raises(InputError, match="explicit-state"):
        map_symbols(checkout, {"model_fn": "diffsynth.pipelines.stateplay:model_fn_stateplay"})


def test_an_explicit_result_is_refused(tmp_path: Path) -> None:
    world = write_checkout_world(tmp_path / "w")
    text = (tmp_path / "w/checkout" / PIPELINE).read_text()
    head = text[: text.index("    return {")]
    (tmp_path / "w/checkout" / PIPELINE).write_text(head + "    return video, low\n")
    loaded = load(world)
    with pytest.raises(InputError, match="tuple"):
        run(loaded)
    (tmp_path / "w/checkout" / PIPELINE).write_text(head + '    return {"pred_video": video, "G_seq": state}\n')


def run(world: CheckoutWorld) -> torch.Tensor:
    import numpy as np

    from stateplay_rl.worlds.base import ConditionInputs

    frame, buttons = np.zeros((64, 96, 3), np.uint8), np.zeros((9, 11), np.float32)
    batch = world.encode_conditions([ConditionInputs("c", frame, buttons, "p", 3)])
    with torch.no_grad():
        return world.velocity(torch.zeros(1, 16, 3, 8, 12), torch.tensor([0.5]), batch).velocity_BCfHW


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"G_seq": state,\n', "", "lacks G_seq"),
        ('"G_seq_low": low,', '"G_seq_low": low[:, 1:],', "shapes do not fit"),
        ("use_gradient_checkpointing=False,", "use_gradient_checkpointing=False,\n    noisy_state=None,", None),
        ("    keyboard_action=None,\n", "    keyboard=None,\n", "keyboard_action"),
        ("    dit,\n", "    dit,\n    state,\n", "needs state"),
    ],
)
def test_other_signatures_and_results(tmp_path: Path, old: str, new: str, message: str | None) -> None:
    world = write_checkout_world(tmp_path / "w")
    file = tmp_path / "w/checkout" / PIPELINE
    replace(file, old, new)
    if "keyboard=" in new:
        replace(file, "    **kwargs,\n", "")
        replace(file, "keyboard_action.transpose", "keyboard.transpose")
    if "state,\n" in new and "dit" in new:
        replace(file, "    **kwargs,\n", "")
        replace(file, "    dit,\n    state,\n    latents=None", "    dit,\n    state,\n    latents=None")
    loaded = load(world)
    if message is None:
        assert run(loaded).shape == (1, 16, 3, 8, 12)
    else:
        with pytest.raises(InputError, match=message):
            run(loaded)


def test_keys_are_compared_one_by_one_and_buffers_may_be_absent(tmp_path: Path) -> None:
    world = write_checkout_world(tmp_path / "w")
    file = tmp_path / "w" / CHECKPOINT
    tensors = load_file(file)
    assert "code_levels" not in tensors
    load(world)
    save_file({f"module.pipe.dit.{name}": value for name, value in tensors.items()}, file)
    load(world)
    save_file({k: v for k, v in tensors.items() if k != "latent_state_rollout.transition.delta.bias"}, file)
    with pytest.raises(InputError, match=r"1 missing: latent_state_rollout\.transition\.delta\.bias"):
        load(world)
    save_file({**tensors, "secret.weight": torch.zeros(1)}, file)
    with pytest.raises(InputError, match=r"secret\.weight"):
        load(world)
    save_file({**tensors, "head.head.bias": torch.zeros(3)}, file)
    with pytest.raises(InputError, match=r"head\.head\.bias \[3\]"):
        load(world)


def test_a_base_completes_a_scoped_checkpoint(tmp_path: Path) -> None:
    world = write_checkout_world(tmp_path / "w")
    whole = load(world)
    file = tmp_path / "w" / CHECKPOINT
    tensors = load_file(file)
    scoped = {k: v for k, v in tensors.items() if "latent_state" in k}
    save_file(scoped, file)
    save_file(
        {k: torch.zeros_like(v) if k in scoped else v for k, v in tensors.items()}, tmp_path / "w/base.safetensors"
    )
    described = yaml.safe_load(world.read_text())
    described["files"]["base"] = "base.safetensors"
    world.write_text(yaml.safe_dump(described))
    joined = load(world)
    assert joined.sha256 != whole.sha256
    assert torch.equal(run(joined), run(whole))


def test_two_checkouts_in_one_process(tmp_path: Path) -> None:
    one = load(write_checkout_world(tmp_path / "one"))
    first = run(one)
    two_file = write_checkout_world(tmp_path / "two")
    replace(tmp_path / "two/checkout" / PIPELINE, '"pred_video": video,', '"pred_video": 2 * video,')
    two = load(two_file)
    assert torch.equal(run(two), 2 * first)
    assert torch.equal(run(one), first)
    assert two.sha256 != one.sha256
    assert two.encoder_sha256 != one.encoder_sha256


def test_a_checkout_that_does_not_import(tmp_path: Path) -> None:
    world = write_checkout_world(tmp_path / "w")
    replace(tmp_path / "w/checkout" / MODEL, "import torch\n", "import torch\nimport a_package_that_is_not_there\n")
    with pytest.raises(InputError, match="a_package_that_is_not_there"):
        load(world)
    replace(tmp_path / "w/checkout" / MODEL, "import a_package_that_is_not_there\n", "if:\n")
    with pytest.raises(InputError, match="does not parse"):
        load(world)


def test_another_grid_is_refused(tmp_path: Path) -> None:
    world = write_checkout_world(tmp_path / "w")
    replace(tmp_path / "w/checkout/diffsynth/diffusion/flow_match.py", "1 - k / num_inference_steps", "1 - k / 100")
    with pytest.raises(InputError, match="scheduler"):
        load(world)


def test_arguments_of_the_classes(tmp_path: Path) -> None:
    world = write_checkout_world(tmp_path / "w")
    with pytest.raises(InputError, match="takes no chanels"):
        load(options(world, transition_tokenizer_kwargs={"chanels": 16}))
    options(world, transition_tokenizer_kwargs={"channels": 16}, model_kwargs={**MODEL_KWARGS, "num_layers": 3})
    with pytest.raises(InputError, match="missing"):
        load(world)
    checkout = tmp_path / "w/checkout"
    (checkout / "training").mkdir()
    kwargs = {k: v for k, v in MODEL_KWARGS.items() if k != "num_buttons"}
    (checkout / "training/train.py").write_text(f"WAN_MODEL_KWARGS = {kwargs!r}\n")
    assert literal(checkout, "WAN_MODEL_KWARGS") == kwargs
    load(options(world, model_kwargs={}))


def test_world_files_of_a_checkout(tmp_path: Path) -> None:
    world = write_checkout_world(tmp_path / "w")
    assert resolve_world(str(world)).backend == "stateplay"
    with pytest.raises(InputError, match="key_map has no meaning"):
        load(options(world, key_map={"a": "b"}))
    with pytest.raises((InputError, UsageError), match="backend native does not run a checkout"):
        load_config(WorldConfig, options(world, backend="native"))
    described = yaml.safe_load(world.read_text())
    described.pop("checkout")
    world.write_text(yaml.safe_dump({**described, "backend": "stateplay"}))
    with pytest.raises((InputError, UsageError), match="needs `checkout`"):
        load_config(WorldConfig, world)
    world.write_text(yaml.safe_dump({**described, "checkout": "nowhere", "backend": "stateplay"}))
    with pytest.raises(InputError, match="no checkout at"):
        resolve_world(str(world))


def test_a_policy_is_compared_before_anything_is_loaded(tmp_path: Path) -> None:
    config = resolve_world(str(write_checkout_world(tmp_path / "w")))
    policy = tmp_path / "policy.safetensors"
    save_file({"latent_state_rollout.transition.delta.bias": torch.zeros(16)}, policy)
    require_policy(config, policy)
    save_file({"latent_state_rollout.transition.delta.bias": torch.zeros(5)}, policy)
    with pytest.raises(InputError, match=r"\[5\] instead of \[16\]"):
        require_policy(config, policy)


def test_importing_leaves_the_path_alone(tmp_path: Path) -> None:
    import sys

    before = list(sys.path)
    import_module(copy_checkout(tmp_path / "c", commit=False), "diffsynth.models.stateplay_dit", "0" * 64)
    assert sys.path == before
