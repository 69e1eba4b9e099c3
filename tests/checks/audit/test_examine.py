"""Coverage, provenance, health and verdict on whole worlds, damaged one fault at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from stateplay_rl.checks.audit.examine import Examination, Targets, examine, infer_preset
from stateplay_rl.checks.audit.expected import TOKENIZER, TRANSFORMER, VAE, expected_tensors
from stateplay_rl.checks.audit.verdict import completing_command
from stateplay_rl.stores.atomic import sha256_file
from tests.checks.audit.audit_world import FILES, Arrays

GOLDEN = Path(__file__).parents[2] / "golden"
WriteWorld = Callable[..., Path]
GATE = "blocks.0.latent_state_attention.gate"
DELTA = "latent_state_rollout.transition.delta.weight"


def targets(folder: Path, **changes: object) -> Targets:
    base = (folder / FILES[VAE], folder / FILES["text_encoder"])
    whole = {
        "checkpoint": (folder / FILES[TRANSFORMER],),
        "base": base,
        "tokenizer": folder / FILES[TOKENIZER],
        "preset": "arena",
        "complete": True,
    }
    return Targets(**{**whole, **changes})


def edit(action: Callable[[Arrays], object], component: str = TRANSFORMER) -> Callable[[str, Arrays], None]:
    def change(name: str, arrays: Arrays) -> None:
        if name == component:
            action(arrays)

    return change


def failures(result: Examination) -> str:
    return "\n".join(result.verdict.failures)


def test_a_whole_world_passes_and_every_tensor_has_a_source(write_world: WriteWorld) -> None:
    result = examine(targets(write_world()))
    assert result.verdict.name == "passed"
    assert result.verdict.trainable
    expected = expected_tensors("arena")
    assert [(r.component, r.name) for r in result.evidence.rows] == [(t.component, t.name) for t in expected]
    assert Counter(r.source for r in result.evidence.rows) == {
        "sft": sum(t.component == TRANSFORMER for t in expected),
        "tokenizer": sum(t.component == TOKENIZER for t in expected),
        "base": sum(t.component in (VAE, "text_encoder") for t in expected),
    }
    assert not any(row.disagrees for row in result.evidence.architecture)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.module.", "base_model.model.pipe.dit.", "model." * 3])
def test_nested_prefixes_change_nothing_but_the_map(write_world: WriteWorld, prefix: str) -> None:
    def wrap(arrays: Arrays) -> None:
        for name in list(arrays):
            arrays[prefix + name] = arrays.pop(name)

    result = examine(targets(write_world(edit(wrap))))
    assert result.verdict.name == "passed"
    assert result.evidence.sft.removed == {prefix: sum(t.component == TRANSFORMER for t in expected_tensors("arena"))}


def test_both_layouts_of_names_pass(write_world: WriteWorld) -> None:
    from stateplay_rl.worlds.native.keymap import from_training_names

    def rename(arrays: Arrays) -> None:
        renamed = from_training_names(dict(arrays)).state
        arrays.clear()
        arrays.update(renamed)

    assert examine(targets(write_world(edit(rename)))).verdict.name == "passed"


@pytest.mark.parametrize(
    "name",
    [
        DELTA,
        "latent_state_rollout.initializer.queries",
        "latent_state_rollout.output_projection.bias",
        "transition_predictor.head.weight",
        "blocks.3.latent_state_attention.out.weight",
    ],
)
def test_a_missing_latent_state_parameter_fails_whatever_else_is_given(write_world: WriteWorld, name: str) -> None:
    folder = write_world(edit(lambda arrays: arrays.pop(name)))
    for goal in (targets(folder), Targets((folder / FILES[TRANSFORMER],))):
        result = examine(goal)
        assert result.verdict.name == "failed"
        assert "random initialisation" in failures(result)
        assert name in failures(result)


def test_allow_init_inspects_but_never_trains(write_world: WriteWorld) -> None:
    folder = write_world(edit(lambda arrays: arrays.pop(DELTA)))
    result = examine(targets(folder), allow_init=True)
    assert result.verdict.name == "passed"
    assert not result.verdict.trainable
    assert {r.name for r in result.evidence.rows if r.source == "initialised"} == {DELTA}


def _scoped(arrays: Arrays) -> None:
    """As the trainer's logger writes: what has gradients, under its own prefix."""
    keep = ("latent_state", "transition_predictor", "action_embedders")
    for name in list(arrays):
        value = arrays.pop(name)
        if any(word in name for word in keep):
            arrays[f"pipe.dit.{name}"] = value


def test_a_scoped_file_alone_is_partial_with_the_command_that_completes_it(write_world: WriteWorld) -> None:
    folder = write_world(edit(_scoped))
    checkpoint = folder / FILES[TRANSFORMER]
    result = examine(Targets((checkpoint,)))
    assert result.verdict.name == "partial"
    assert result.inferred
    assert result.evidence.preset_name == "arena"
    command = completing_command(result.evidence, None)
    assert command.startswith(f"sprl audit-ckpt {checkpoint} --base ")
    assert "--tokenizer" in command


def test_a_scoped_file_with_base_and_tokenizer_is_complete(
    write_world: WriteWorld, arena_arrays: Mapping[str, Arrays], tmp_path: Path
) -> None:
    folder = write_world(edit(_scoped))
    backbone = {
        name: value
        for name, value in arena_arrays[TRANSFORMER].items()
        if not any(word in name for word in ("latent_state", "transition_predictor", "action_embedders"))
    }
    base = tmp_path / "base"
    base.mkdir()
    save_file(backbone, base / "diffusion_pytorch_model.safetensors")
    for component in (VAE, "text_encoder"):
        (folder / FILES[component]).rename(base / FILES[component])
    goal = Targets((folder / FILES[TRANSFORMER],), (base,), folder / FILES[TOKENIZER])
    result = examine(goal)
    assert result.verdict.name == "passed", result.verdict
    sources = Counter(r.source for r in result.evidence.rows if r.component == TRANSFORMER)
    assert sources["base"] == len(backbone)
    assert sources["sft"] + sources["base"] == len(arena_arrays[TRANSFORMER])

    del backbone["head.head.bias"]
    save_file(backbone, base / "diffusion_pytorch_model.safetensors")
    lacking = examine(goal)
    assert lacking.verdict.name == "failed"
    assert "head.head.bias" in failures(lacking)


def test_sft_weights_win_over_the_base(write_world: WriteWorld, tmp_path: Path) -> None:
    folder = write_world()
    save_file({"head.head.bias": np.zeros(64, np.float32)}, tmp_path / "old.safetensors")
    goal = targets(folder)
    result = examine(targets(folder, base=(*goal.base, tmp_path / "old.safetensors")))
    row = next(r for r in result.evidence.rows if r.name == "head.head.bias")
    assert row.source == "sft"


def test_unexpected_and_misshapen_tensors_fail_by_name(write_world: WriteWorld) -> None:
    def change(arrays: Arrays) -> None:
        arrays["latent_state_rollout.secret.weight"] = np.ones(3, np.float32)
        arrays["time_projection.1.bias"] = np.ones(5, np.float32)

    result = examine(targets(write_world(edit(change))))
    assert result.verdict.name == "failed"
    assert "latent_state_rollout.secret.weight" in failures(result)
    assert "time_projection.1.bias: shape [5]" in failures(result)
    row = next(m for m in result.evidence.coverage.modules if m.module == "time_projection")
    assert (row.expected, row.found, row.wrong_shape) == (2, 2, 1)


def test_an_architecture_that_is_not_the_described_one(write_world: WriteWorld) -> None:
    result = examine(targets(write_world(), preset="stateplay-5b"))
    assert result.verdict.name == "failed"
    assert "dim: the shapes say 120, the world description 3072" in failures(result)
    assert "layers: the shapes say 5, the world description 30" in failures(result)


def test_no_known_world_fits(write_world: WriteWorld) -> None:
    def widen(arrays: Arrays) -> None:
        arrays["action_embedders.0.weight"] = np.ones((120, 12), np.float32)

    result = examine(Targets((write_world(edit(widen)) / FILES[TRANSFORMER],)))
    assert infer_preset(result.evidence.given) is None
    assert "--world FILE" in failures(result)


@pytest.mark.parametrize(
    "file, words",
    [
        ("explicit_state_checkpoint.safetensors", "explicit-state model"),
        ("backbone_weights.safetensors", "without latent-state modules"),
        ("vae_weights.safetensors", "give it as --base"),
        ("text_encoder_weights.safetensors", "give it as --base"),
        ("nft_loss.safetensors", "no known model"),
    ],
)
def test_other_models_are_named_and_refused(file: str, words: str) -> None:
    result = examine(Targets((GOLDEN / file,)))
    assert result.verdict.name == "failed"
    assert words in failures(result)
    assert sum(m.found for m in result.evidence.coverage.modules) == len(result.evidence.sft.placed)


def test_mixed_state_and_an_explicit_base_are_refused(write_world: WriteWorld) -> None:
    def mix(arrays: Arrays) -> None:
        arrays["state_encoder.0.weight"] = np.ones(5, np.float32)

    folder = write_world(edit(mix))
    assert "forbidden together" in failures(examine(targets(folder)))
    folder = write_world()
    goal = targets(folder)
    base = (*goal.base, GOLDEN / "explicit_state_checkpoint.safetensors")
    assert "explicit-state model" in failures(examine(targets(folder, base=base)))


def test_closed_gates(write_world: WriteWorld) -> None:
    def close(count: int) -> Callable[[Arrays], None]:
        def change(arrays: Arrays) -> None:
            for block in range(count):
                arrays[f"blocks.{block}.latent_state_attention.gate"] = np.zeros(1, np.float32)

        return change

    assert "all 5 coupling gates are still 0" in failures(examine(targets(write_world(edit(close(5))))))
    some = examine(targets(write_world(edit(close(2)))))
    assert some.verdict.name == "passed"
    assert any(f.severity == "warning" and "2 of 5" in f.message for f in some.evidence.health)


def test_scalar_gates_of_the_training_repository_fit(write_world: WriteWorld) -> None:
    def scalar(arrays: Arrays) -> None:
        arrays[GATE] = arrays[GATE].reshape(())

    assert examine(targets(write_world(edit(scalar)))).verdict.name == "passed"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_show_in_a_scan_only(write_world: WriteWorld, value: float) -> None:
    def spoil(arrays: Arrays) -> None:
        arrays[DELTA] = arrays[DELTA].copy()
        arrays[DELTA][3, 5] = value

    folder = write_world(edit(spoil))
    assert examine(targets(folder)).verdict.name == "passed"
    result = examine(targets(folder), scan=True)
    assert result.verdict.name == "failed"
    assert f"{DELTA}: 1 of" in failures(result)


def test_a_scan_reads_everything_and_finds_nothing_in_a_good_world(write_world: WriteWorld) -> None:
    seen: list[tuple[int, int]] = []
    result = examine(targets(write_world()), scan=True, progress=lambda done, total: seen.append((done, total)))
    assert result.verdict.name == "passed"
    assert (
        seen[-1][0] == seen[-1][1] == sum(p.facts.end - p.facts.begin for p in result.evidence.coverage.chosen.values())
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_files_are_scanned_bit_by_bit(
    write_world: WriteWorld, arena_arrays: Mapping[str, Arrays], dtype: torch.dtype
) -> None:
    folder = write_world()
    tensors = {n: torch.from_numpy(np.array(v)).to(dtype) for n, v in arena_arrays[TRANSFORMER].items()}
    save_torch(tensors, folder / FILES[TRANSFORMER])
    good = examine(targets(folder), scan=True)
    assert good.verdict.name == "passed", good.verdict
    assert any(f.check == "dtype" for f in good.evidence.health)
    tensors[DELTA][0, 0] = float("nan")
    tensors[DELTA][0, 1] = float("-inf")
    tensors["blocks.0.ffn.0.weight"] = torch.full_like(tensors["blocks.0.ffn.0.weight"], -0.0)
    save_torch(tensors, folder / FILES[TRANSFORMER])
    result = examine(targets(folder), scan=True)
    assert f"{DELTA}: 2 of" in failures(result)
    assert any(f.check == "all_zero" and "blocks.0.ffn.0.weight" in f.message for f in result.evidence.health)


def test_an_all_zero_latent_matrix_fails_the_scan(write_world: WriteWorld) -> None:
    def zero(arrays: Arrays) -> None:
        arrays[DELTA] = np.zeros_like(arrays[DELTA])

    assert "all zero" in failures(examine(targets(write_world(edit(zero))), scan=True))


def test_a_torch_checkpoint_is_read_like_a_safetensors_one(
    write_world: WriteWorld, arena_arrays: Mapping[str, Arrays]
) -> None:
    folder = write_world()
    state = {n: torch.from_numpy(np.array(v)).bfloat16() for n, v in arena_arrays[TRANSFORMER].items()}
    torch.save({"state_dict": {f"module.{n}": v for n, v in state.items()}, "step": 7}, folder / "step.pt")
    result = examine(targets(folder, checkpoint=(folder / "step.pt",)), scan=True)
    assert result.verdict.name == "passed", result.verdict
    assert list(result.evidence.sft.removed) == ["state_dict.module."]


def test_a_lora_file_of_one_shard(tmp_path: Path) -> None:
    rows = np.zeros((64, 8), np.float32)
    rows[:8] = 1.0
    names = [f"base_model.model.blocks.{n}.latent_state_attention.q" for n in range(2)]
    arrays = {f"{n}.lora_B.weight": rows for n in names} | {
        f"{n}.lora_A.weight": np.ones((8, 120), np.float32) for n in names
    }
    save_file(arrays, tmp_path / "lora.safetensors")
    result = examine(Targets((tmp_path / "lora.safetensors",)))
    assert result.verdict.name == "failed"
    assert "LoRA factors only" in failures(result)
    finding = next(f for f in result.evidence.health if f.check == "lora_rows")
    assert "8 of 64 rows non-zero (12.5%)" in finding.message


def test_a_codebook_that_does_not_fit_the_predictor(write_world: WriteWorld) -> None:
    def levels(arrays: Arrays) -> None:
        arrays["quantizer.levels"] = np.array([8, 8, 4], np.int64)

    result = examine(targets(write_world(edit(levels, TOKENIZER))))
    assert "256 codes, the predictor has 512" in failures(result)


def test_quantizer_buffers_that_no_file_holds_are_assumed_and_untrainable(write_world: WriteWorld) -> None:
    def drop(arrays: Arrays) -> None:
        arrays.pop("quantizer.levels")
        arrays.pop("quantizer.basis")

    result = examine(targets(write_world(edit(drop, TOKENIZER))))
    assert result.verdict.name == "passed"
    assert not result.verdict.trainable
    assert sum(r.source == "assumed" for r in result.evidence.rows) == 2


def test_the_tokenizer_on_record_is_matched(write_world: WriteWorld) -> None:
    folder = write_world()
    sha256 = sha256_file(folder / FILES[TOKENIZER])
    assert examine(targets(write_world(metadata={"transition_tokenizer_sha256": sha256}))).verdict.name == "passed"
    other = examine(targets(write_world(metadata={"transition_tokenizer_sha256": "0" * 64})))
    assert "was trained with tokenizer 000" in failures(other)


def test_a_truncated_file_says_only_that(write_world: WriteWorld) -> None:
    folder = write_world()
    path = folder / FILES[TRANSFORMER]
    path.write_bytes(path.read_bytes()[:-7])
    result = examine(targets(folder), scan=True)
    assert result.verdict.name == "failed"
    assert len(result.verdict.failures) == 1
    assert "7 bytes are missing" in failures(result)


def test_a_damaged_base_file_fails_too(write_world: WriteWorld) -> None:
    folder = write_world()
    (folder / FILES[VAE]).write_bytes(b"<html>")
    assert "HTML page" in failures(examine(targets(folder)))
