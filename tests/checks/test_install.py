"""`verify install`: green here; each planted fault fails exactly its check."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from stateplay_rl.checks import gradient_map, install, subprocesses, tiny_world
from stateplay_rl.checks.lines import run_checks
from stateplay_rl.nft import advantage, loss, old_policy, randomness, schedule
from stateplay_rl.stores import sealed, video
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.worlds import preparation, world_files
from stateplay_rl.worlds.native import modes
from stateplay_rl.worlds.native.transformer import LatentStateTransformer

# The packaged weights have a test of their own, with a folder of its own.
# Golden files hold the same functions as the mathematics does, by other means: a fault there is a fault in both.
QUICK = tuple(check for check in install.CHECKS if check[0] not in ("two_processes", "arena_weights", "golden"))


def failed():
    return {line.name for line in run_checks(QUICK) if line.status == "failed"}


def test_quick_checks_pass():
    lines = run_checks(QUICK)
    assert [(line.name, line.detail) for line in lines if line.status != "passed"] == []
    assert all(line.detail for line in lines)


@pytest.mark.slow
def test_two_processes_agree():
    assert "differ by" in install.check_two_processes()


def twice_the_clip(*args, **kwargs):
    return REAL_LOSS(*args, **{**kwargs, "advantage_clip": 2 * kwargs["advantage_clip"]})


REAL_LOSS = loss.nft_loss
REAL_NORMAL = randomness.normal


def drawn_globally(key, shape):
    torch.rand(1)
    return REAL_NORMAL(key, shape)


def detached_states(self, first, bins):
    with torch.no_grad():
        return REAL_STATES(self, first, bins)


REAL_STATES = LatentStateTransformer.state_sequence


REAL_GROUPS = modes.trained_groups


FAULTS = [
    ("loss", loss, "nft_loss", twice_the_clip),
    ("loss", loss, "without_condition_slot", lambda latents: latents),
    ("advantage", advantage, "gate", lambda *a, **k: advantage.Gate((None, None, None, None))),
    ("schedule", schedule, "sampling_sigmas", lambda steps: torch.linspace(1, 0, steps + 1)[:-1]),
    ("old_policy", old_policy, "weight_on_old", lambda steps: min(0.001 * steps, 0.9)),
    ("randomness", randomness, "normal", drawn_globally),
    ("preparation", preparation, "clean_prompt", lambda text: text),
    ("storage", sealed, "file_problems", lambda manifest: iter(())),
    ("video", video, "decode_mp4", lambda path: torch.zeros(8, 32, 48, 3).numpy()),
    ("gradient_map", LatentStateTransformer, "state_sequence", detached_states),
]


@pytest.mark.parametrize(("name", "owner", "attribute", "fault"), FAULTS)
def test_a_planted_fault_fails_its_check_alone(monkeypatch, name, owner, attribute, fault):
    monkeypatch.setattr(owner, attribute, fault)
    assert failed() == {name}


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(install, "REQUIRED", ("torch", "no_such_library"))
    line = run_checks([("libraries", install.check_libraries)])[0]
    assert line.status == "failed"
    assert "no_such_library" in line.detail


def test_without_the_world_extra_its_checks_are_skipped(monkeypatch):
    monkeypatch.setattr(install, "WORLD_EXTRA", ("no_such_library",))
    lines = run_checks([check for check in install.CHECKS if check[0] in ("gradient_map", "sampling", "two_processes")])
    assert {line.status for line in lines} == {"skipped"}
    assert all("stateplay-rl[world]" in line.detail for line in lines)


def test_packaged_weights_that_differ_are_found(monkeypatch, tmp_path):
    names = ("LATENT_WORLD", "TRANSITION_TOKENIZER", "VAE", "TEXT_ENCODER", "TEXT_TOKENIZER")
    files = [tmp_path / getattr(world_files, name) for name in names]
    for file in files:
        file.write_bytes(file.name.encode())
    hashes = {file.name: sha256_file(file) for file in files}
    (tmp_path / world_files.WEIGHT_HASHES).write_text(json.dumps(hashes))
    monkeypatch.setattr(world_files, "arena_weights_folder", lambda: tmp_path)
    checks = [("arena_weights", install.check_arena_weights)]
    assert run_checks(checks)[0].status == "passed"
    files[2].write_bytes(b"other")
    line = run_checks(checks)[0]
    assert line.status == "failed"
    assert files[2].name in line.detail
    files[2].unlink()
    assert run_checks(checks)[0].status == "failed"


def test_sampling_that_depends_on_the_batch_is_found(monkeypatch):
    real = tiny_world.velocity
    monkeypatch.setattr(tiny_world, "velocity", lambda model, x, s, c: real(model, x, s, c) + 1e-3 * x.mean())
    assert failed() == {"sampling"}


def test_a_frozen_parameter_with_a_gradient_is_found(monkeypatch):
    def leak(model, mode):
        model.proj_out.bias.requires_grad_(True)
        return REAL_GROUPS(model, mode)

    monkeypatch.setattr(gradient_map.modes, "trained_groups", leak)
    line = run_checks([("gradient_map", install.check_gradient_map)])[0]
    assert line.status == "failed"
    assert "proj_out.bias" in line.detail


def test_two_processes_that_differ_are_found(monkeypatch, tmp_path):
    """Both workers replaced by one that writes other weights for each number of processes."""
    from safetensors.torch import save_file

    def write(arguments):
        count = "2" if "torch.distributed.run" in arguments else "1"
        value = {"live.w": torch.tensor([float(count)]), "old.w": torch.zeros(1)}
        save_file(value, arguments[-1], {"processes": count})

    monkeypatch.setattr(install, "_run_python", write)
    line = run_checks([("two_processes", install.check_two_processes)])[0]
    assert line.status == "failed"
    assert "differ by 1.0e+00" in line.detail


def test_a_launch_that_starts_one_process_is_found(monkeypatch):
    from safetensors.torch import save_file

    value = {"live.w": torch.ones(1), "old.w": torch.zeros(1)}
    monkeypatch.setattr(install, "_run_python", lambda a: save_file(value, a[-1], {"processes": "1"}))
    line = run_checks([("two_processes", install.check_two_processes)])[0]
    assert "1 processes took part instead of 2" in line.detail


def test_a_worker_that_fails_is_a_failed_check():
    with pytest.raises(install.CheckError, match="exit 3"):
        install._run_python(["-c", "import sys; sys.exit(3)"])


def test_children_get_one_thread_and_no_place_in_a_launch(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    environment = subprocesses.cpu_environment()
    assert "RANK" not in environment
    assert (environment["OMP_NUM_THREADS"], environment["ACCELERATE_USE_CPU"]) == ("1", "true")


def test_the_packaged_golden_files_are_those_of_the_tests():
    packaged = sorted(install.GOLDEN_FOLDER.iterdir())
    assert len(packaged) == install.GOLDEN_FILES
    tests = Path(__file__).parents[1] / "golden"
    assert [file.read_bytes() for file in packaged] == [(tests / file.name).read_bytes() for file in packaged]


def golden_line():
    return run_checks([("golden", install.check_golden)])[0]


def test_a_golden_file_that_disagrees_is_named(monkeypatch, tmp_path):
    shutil.copytree(install.GOLDEN_FOLDER, tmp_path / "g")
    file = tmp_path / "g" / "old_policy_decay.json"
    file.write_text(file.read_text().replace("0.5", "0.25"))
    monkeypatch.setattr(install, "GOLDEN_FOLDER", tmp_path / "g")
    assert (golden_line().status, "old_policy_decay" in golden_line().detail) == ("failed", True)


def test_golden_files_that_are_missing_are_no_success(monkeypatch, tmp_path):
    shutil.copytree(install.GOLDEN_FOLDER, tmp_path / "g")
    (tmp_path / "g" / "nft_loss.safetensors").unlink()
    monkeypatch.setattr(install, "GOLDEN_FOLDER", tmp_path / "g")
    assert "4 golden files" in golden_line().detail


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(install, "REQUIRED", (*install.REQUIRED, "no_such_library"))
    line = run_checks([("libraries", install.check_libraries)])[0]
    assert (line.status, "no_such_library" in line.detail) == ("failed", True)


def test_every_check_has_a_planted_fault():
    """Above: in FAULTS, or in a test of its own."""
    own = {"libraries", "arena_weights", "sampling", "two_processes", "golden"}
    assert {name for name, _ in install.CHECKS} == own | {fault[0] for fault in FAULTS}
