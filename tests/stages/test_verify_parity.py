"""`sprl verify parity` through the command line: equal worlds pass, any difference is a failed line, exit 4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from stateplay_rl.checks.audit.trainable import require_trainable_audit
from stateplay_rl.checks.comparison import GoldenLine
from stateplay_rl.checks.parity import ParityPlan, compare, drawn_inputs, measure
from stateplay_rl.cli.main import main
from stateplay_rl.config.audit import AuditConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import CheckError
from stateplay_rl.stages import audit_ckpt
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.worlds.native.keymap import from_training_names
from stateplay_rl.worlds.native.presets import LatentStateSizes, TransformerSizes
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.weights import load_exactly
from stateplay_rl.worlds.world_files import resolve_world
from tests.worlds.stateplay.standin_world import write_checkout_world, write_documented_world
from tests.worlds.tiny import tiny_world


def parity(*worlds: Path | str, out: Path, more: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
    arguments = [text for world in worlds for text in ("--world", str(world))]
    code = main(["verify", "parity", *arguments, "--out", str(out), *more])
    record = out / "verify.json"
    return code, json.loads(record.read_text()) if record.is_file() else {}


def failed(record: dict[str, Any]) -> set[str]:
    return {line["file"] for line in record["lines"] if line["status"] != "passed"}


def edit(world: Path, change: dict[str, float]) -> None:
    """Add a number to some tensors of the checkpoint."""
    file = world.parent / "step-4572.safetensors"
    tensors = load_file(file)
    for name, amount in change.items():
        tensors[name] = tensors[name] + amount
    save_file(tensors, file)


def test_a_world_equals_itself_and_the_record_names_both(tmp_path: Path) -> None:
    one, two = write_checkout_world(tmp_path / "one"), write_checkout_world(tmp_path / "two")
    code, record = parity(one, two, out=tmp_path / "verify")
    assert code == 0
    assert record["passed"]
    assert {line["file"] for line in record["lines"]} == {
        "encode first frame",
        "encode text",
        "encode clip",
        "action bins",
        "velocity, sigma 0.95",
        "velocity, sigma 0.6",
        "velocity, sigma 0.2",
        "state sequence",
        "state tokens",
        "transition logits",
        "rollout, 2 steps",
        "decode",
        "gradients of module B",
    }
    extra = read_manifest(tmp_path / "verify", schema="verify", verify_files=True).extra
    assert [world["backend"] for world in extra["worlds"]] == ["stateplay", "stateplay"]
    assert extra["worlds"][0]["facts"]["checkout"]["code_sha256"]
    assert extra["kind"] == "parity"


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({"latent_state_predictor.classes.bias": 1.0}, {"transition logits"}),
        (
            {"latent_state_rollout.output_projection.bias": 1.0},
            {"state tokens", "velocity, sigma 0.95", "velocity, sigma 0.6", "velocity, sigma 0.2"},
        ),
        ({"head.head.bias": 1.0}, {"velocity, sigma 0.95", "velocity, sigma 0.6", "velocity, sigma 0.2"}),
    ],
)
def test_a_difference_shows_where_it_is(tmp_path: Path, change: dict[str, float], lines: set[str]) -> None:
    one, two = write_checkout_world(tmp_path / "one"), write_checkout_world(tmp_path / "two")
    edit(two, change)
    code, record = parity(one, two, out=tmp_path / "verify")
    assert code == 4
    assert lines <= failed(record) <= {*lines, "rollout, 2 steps", "gradients of module B"}


def test_a_difference_of_the_encoders_stays_in_their_lines(tmp_path: Path) -> None:
    one, two = write_checkout_world(tmp_path / "one"), write_checkout_world(tmp_path / "two")
    vae = torch.load(tmp_path / "two" / "Wan2.2_VAE.pth")
    torch.save({**vae, "encoder.conv1.bias": vae["encoder.conv1.bias"] + 1}, tmp_path / "two" / "Wan2.2_VAE.pth")
    code, record = parity(one, two, out=tmp_path / "verify")
    assert code == 4
    assert failed(record) == {"encode first frame", "encode clip"}
    code, _ = parity(one, two, out=tmp_path / "loose", more=("--set", "tolerance_encode=10"))
    assert code == 0


def test_closed_gates_hide_module_b_and_that_is_said(tmp_path: Path) -> None:
    one, two = (write_checkout_world(tmp_path / name, gate=0.0) for name in ("one", "two"))
    code, record = parity(one, two, out=tmp_path / "verify")
    assert code == 4
    assert failed(record) == {"gradients of module B"}
    assert "exactly 0" in record["lines"][-1]["detail"]


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    one = write_checkout_world(tmp_path / "one")
    assert parity(one, out=tmp_path / "a") == (2, {}) or not (tmp_path / "a").exists()
    other = write_checkout_world(tmp_path / "two", frame_height=32)
    code, record = parity(one, other, out=tmp_path / "b")
    assert code == 3
    assert record == {}
    assert parity(one, one, out=tmp_path / "c", more=("--set", "sigmas=[2]"))[0] == 2


def test_two_native_worlds() -> None:
    world = tiny_world()
    inputs, clip = drawn_inputs(world.spec, 3, 0)
    plan = ParityPlan(inputs, clip, (0.5,), 2, 0)
    first = measure(world, plan)
    same = compare(first, measure(tiny_world(), plan, first.encoded), {})
    assert all(line.status == "passed" for line in same), same
    other = compare(first, measure(tiny_world(seed=3), plan, first.encoded), {})
    assert sum(line.status == "failed" for line in other) > 8


def backbone_lines(tmp_path: Path) -> list[GoldenLine]:
    """The native model and the stand-in on the same backbone weights, gates closed: nothing of theirs is shared."""
    from stateplay_rl.worlds.load import load_world

    theirs = load_world(resolve_world(str(write_checkout_world(tmp_path / "w", gate=0.0))))
    tensors = load_file(tmp_path / "w" / "step-4572.safetensors")
    latent = ("latent_state", "transition_predictor")
    shared = {k: v for k, v in tensors.items() if not any(word in k for word in latent)}
    sizes = TransformerSizes(16, 48, 2, 2, 64, 32, 32)
    ours = LatentStateTransformer(sizes, LatentStateSizes(16, 4, (8, 8, 8), 16, mlp_ratio=2)).eval()
    own = {k: torch.zeros_like(v) for k, v in ours.state_dict().items() if any(word in k for word in latent)}
    load_exactly(ours, {**own, **from_training_names(shared).state}, "shared")
    inputs, _ = drawn_inputs(theirs.spec, 3, 0)
    batch = theirs.encode_conditions([inputs])
    x = torch.randn(1, 16, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    lines = []
    with torch.no_grad():
        for sigma in (0.95, 0.6, 0.2):
            wanted = theirs.velocity(x, torch.tensor([sigma]), batch).velocity_BCfHW
            pinned = torch.cat([batch.first_latent_BC1HW, x[:, :, 1:]], 2)
            _, states = ours.state_sequence(batch.first_latent_BC1HW, batch.action_bins_BfK)
            got = ours(pinned, torch.tensor([1000 * sigma]), batch.action_bins_BfK, batch.text_BLD, states)
            error = float((got - wanted)[:, :, 1:].abs().max() / wanted.abs().max())
            lines.append(GoldenLine(f"sigma {sigma}", "passed" if error < 1e-5 else "failed", error, 1e-5, 1, ""))
    return lines


def test_the_native_backbone_is_the_stand_ins_backbone(tmp_path: Path) -> None:
    """Two independent implementations of the published backbone agree, the adapter's conventions included."""
    lines = backbone_lines(tmp_path)
    assert all(line.status == "passed" for line in lines), lines


ENCODERS = {"encode first frame", "encode text", "encode clip", "decode"}
"""The stand-in's encoders are toys; golden vectors hold the native ones."""


def test_the_native_latent_modules_are_the_documented_ones(tmp_path: Path) -> None:
    """Arena's weights in two independent programs, through the command: states, velocities, gradients of module B."""
    theirs = write_documented_world(tmp_path / "documented")
    code, record = parity(theirs, "arena", out=tmp_path / "verify")
    assert code == 4, "the encoders are toys"
    assert failed(record) == ENCODERS
    lines = {line["file"]: line for line in record["lines"]}
    assert "39 parameters" in lines["gradients of module B"]["detail"]
    assert lines["gradients of module B"]["largest_error"] < 1e-3
    assert lines["state sequence"]["largest_error"] < 1e-5


@pytest.mark.parametrize(
    ("formula", "other", "lines"),
    [
        ("HEADS = 4", "HEADS = 2", {"state sequence", "velocity, sigma 0.6", "gradients of module B"}),
        ("state[:, : (slot + 1) * states_per_slot]", "state", {"velocity, sigma 0.6", "gradients of module B"}),
        ("sinusoid(step, state", "sinusoid(step + 1, state", {"state sequence", "gradients of module B"}),
        ("self.norm(state + self.delta(x))", "self.norm(x + self.delta(x))", {"state sequence", "state tokens"}),
    ],
)
def test_another_formula_with_the_same_shapes_is_found(
    tmp_path: Path, formula: str, other: str, lines: set[str]
) -> None:
    """What no shape shows and what an audit cannot see: every weight loads, and parity fails."""
    theirs = write_documented_world(tmp_path / "documented")
    module = tmp_path / "documented" / "checkout" / "diffsynth" / "models" / "latent_state.py"
    assert formula in module.read_text()
    module.write_text(module.read_text().replace(formula, other))
    code, record = parity(theirs, "arena", out=tmp_path / "verify")
    assert code == 4
    assert lines <= failed(record) - ENCODERS


def test_a_real_checkpoint_trains_natively_only_after_parity(
    tmp_path: Path, write_native_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_native_world()
    world_file = folder / "world.yaml"
    audit = audit_ckpt.run(AuditConfig(world=str(world_file)), tmp_path / "audit")
    assert audit.audit["trainable"]
    # The preset's name is what makes a checkpoint a real one; the sizes stay arena's here.
    monkeypatch.setattr("stateplay_rl.checks.audit.trainable.OWN_WORLDS", ())

    def world(**changes: Any) -> WorldConfig:
        return resolve_world(str(world_file)).model_copy(update=changes)

    with pytest.raises(CheckError, match="never compared") as caught:
        require_trainable_audit(audit.out, world(), "W")
    assert "sprl verify parity" in caught.value.hint
    code, _ = parity(world_file, world_file, out=tmp_path / "self")
    assert code == 0
    with pytest.raises(CheckError, match="other worlds than W with a checkout"):
        require_trainable_audit(audit.out, world(parity=tmp_path / "self"), "W")


def test_a_parity_record_of_this_world_lets_it_train(
    tmp_path: Path, write_native_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_native_world()
    world_file = folder / "world.yaml"
    audit = audit_ckpt.run(AuditConfig(world=str(world_file)), tmp_path / "audit")
    monkeypatch.setattr("stateplay_rl.checks.audit.trainable.OWN_WORLDS", ())
    from stateplay_rl.stages import verify_parity

    original = verify_parity._record
    # The comparison itself needs a checkout of this package's own architecture, which nobody has: one side of
    # an equal pair is put on record as the checkout's.
    sides = iter(("stateplay", "native"))
    monkeypatch.setattr(verify_parity, "_record", lambda *a: {**original(*a), "backend": next(sides)})
    assert parity(world_file, world_file, out=tmp_path / "parity")[0] == 0
    world = resolve_world(str(world_file)).model_copy(update={"parity": tmp_path / "parity"})
    assert require_trainable_audit(audit.out, world, "W")["verdict"] == "passed"
    changed = world.model_copy(update={"key_map": {"a": "b"}})
    with pytest.raises(CheckError, match="another description"):
        require_trainable_audit(audit.out, changed, "W")
    described = yaml.safe_load(world_file.read_text())
    assert described["preset"] == "arena"
