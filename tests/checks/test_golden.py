"""`verify golden`: any subset, any sizes; a fault in one file fails exactly that line."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from stateplay_rl.checks import golden_files
from stateplay_rl.checks.golden import CHECKS, PARTS, run_golden
from stateplay_rl.errors import InputError
from stateplay_rl.nft.schedule import TrainingGrid, sampling_sigmas

GOLDEN = Path(__file__).parents[1] / "golden"
CLIPS = Path(os.environ.get("STATEPLAY_CLIPS", GOLDEN.parents[2] / "shared" / "stateplay_clips"))
NEED_CLIPS = {"action_files.json", "first_frames.json"}


def copied(tmp_path, *names):
    for name in names:
        shutil.copy(GOLDEN / name, tmp_path / name)
    return tmp_path


def read(path):
    with safe_open(path, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118


def edit_tensors(path, change):
    tensors, metadata = read(path)
    change(tensors)
    save_file(tensors, path, metadata)


def edit_json(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def by_file(folder, clips=None):
    return {line.file: line for line in run_golden(folder, clips)}


def test_every_golden_file_passes_or_says_why_not():
    lines = by_file(GOLDEN)
    assert lines.keys() == CHECKS.keys()
    for name, line in lines.items():
        if name in NEED_CLIPS:
            assert line.status == "skipped"
            assert "STATEPLAY_CLIPS" in line.detail
        else:
            assert line.status == "passed", line
            assert line.compared > 0
    assert lines["nft_loss.safetensors"].largest_error < 1e-12
    assert lines["backbone_io.safetensors"].largest_error < 1e-5
    assert lines["text_encoder_io.safetensors"].largest_error < 1e-5
    assert lines["vae_io.safetensors"].largest_error < 1e-4
    # Names there and back, then both outputs of the one case.
    assert lines["text_encoder_io.safetensors"].compared == lines["vae_io.safetensors"].compared == 3
    assert "not checked" in lines["action_bins.safetensors"].detail


@pytest.mark.skipif(not CLIPS.is_dir(), reason="the real clips are not here")
def test_files_about_the_real_clips_pass(tmp_path):
    folder = copied(tmp_path, "action_files.json", "first_frames.json", "action_bins.safetensors")
    lines = by_file(folder, CLIPS)
    assert {line.status for line in lines.values()} == {"passed"}
    assert lines["action_bins.safetensors"].compared == 48
    edit_json(folder / "first_frames.json", lambda v: v["01_macro_success_clip"].update(sha256="0" * 64))
    edit_json(folder / "action_files.json", lambda v: v["08_normal_clip"]["columns"].reverse())
    edit_tensors(
        folder / "action_bins.safetensors",
        lambda t: t["03_result_win_clip/rows97.held"][3, 2].sub_(1),
    )
    lines = by_file(folder, CLIPS)
    assert {line.status for line in lines.values()} == {"failed"}
    assert "01_macro_success_clip sha256" in lines["first_frames.json"].detail


FAULTS = {
    "nft_loss.safetensors": lambda p: edit_tensors(p, lambda t: t["case3.grad_v_live"].mul_(1 + 1e-9)),
    "wan_schedule.safetensors": lambda p: edit_tensors(p, lambda t: t["training1000.weights"][7].add_(1e-4)),
    "action_bins.safetensors": lambda p: edit_tensors(
        p, lambda t: t["05_result_lose_clip/rows97.bins25"][0, 0].sub_(1)
    ),
    "backbone_io.safetensors": lambda p: edit_tensors(p, lambda t: t["case2.block2"][1, 3, 5].add_(1e-2)),
    "text_encoder_io.safetensors": lambda p: edit_tensors(p, lambda t: t["context"][1, 2, 5].add_(1e-3)),
    "vae_io.safetensors": lambda p: edit_tensors(p, lambda t: t["decoded"][0, 1, 4, 7, 9].add_(1e-2)),
    "explicit_state_checkpoint.safetensors": lambda p: save_file({"blocks.0.ffn.0.bias": torch.zeros(2)}, p),
    "group_advantage.json": lambda p: edit_json(p, lambda v: v[0]["advantage"].__setitem__(8, 1e-9)),
    "old_policy_decay.json": lambda p: edit_json(p, lambda v: v["decay_type_1"].update({"8": 0.0081})),
    "prompt_cleaning.json": lambda p: edit_json(p, lambda v: v.append(["a  b", "a  b"])),
    "wan22_latent_stats.json": lambda p: edit_json(p, lambda v: v["std"].__setitem__(3, 1.0)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_one_wrong_value_fails_exactly_its_file(tmp_path, name):
    copied(tmp_path, *FAULTS, *PARTS)
    FAULTS[name](tmp_path / name)
    assert {file for file, line in by_file(tmp_path).items() if line.status == "failed"} == {name}


@pytest.mark.parametrize(
    ("module", "attribute", "wrong", "name"),
    [
        (
            golden_files,
            "sampling_sigmas",
            lambda n, shift: sampling_sigmas(n, 1.01 * shift),
            "wan_schedule.safetensors",
        ),
        (golden_files, "weight_on_old", lambda steps, decay: 0.0, "old_policy_decay.json"),
    ],
)
def test_a_wrong_package_fails(tmp_path, monkeypatch, module, attribute, wrong, name):
    copied(tmp_path, "wan_schedule.safetensors", "old_policy_decay.json", "prompt_cleaning.json")
    monkeypatch.setattr(module, attribute, wrong)
    failed = {file for file, line in by_file(tmp_path).items() if line.status == "failed"}
    assert failed == {name}


def test_any_subset_and_any_names_of_grids(tmp_path):
    """An export of other lengths and shifts, fewer cases, one grid without a path."""
    grid = TrainingGrid.build(50)
    start, velocity = torch.tensor([0.5, -2.0]), torch.tensor([1.0, 3.0])
    sigmas = sampling_sigmas(7, 2.5)
    ends = torch.cat([sigmas[1:], torch.zeros(1)])
    save_file(
        {
            "sampling7_shift2.5.sigmas": sigmas,
            "sampling7_shift2.5.euler_const_v": start + (ends - 1)[:, None] * velocity,
            "training50.weights": grid.weights,
        },
        tmp_path / "wan_schedule.safetensors",
    )
    copied(tmp_path, "nft_loss.safetensors")
    tensors, metadata = read(tmp_path / "nft_loss.safetensors")
    kept = {k: v.float().contiguous() for k, v in tensors.items() if k.startswith(("case1.", "case4."))}
    save_file(kept, tmp_path / "nft_loss.safetensors", metadata)
    lines = by_file(tmp_path)
    assert {name: line.status for name, line in lines.items()} == dict.fromkeys(lines, "passed")
    assert lines["wan_schedule.safetensors"].compared == 3
    assert (lines["nft_loss.safetensors"].compared, lines["nft_loss.safetensors"].tolerance) == (10, 1e-5)


def test_other_backbone_cases_are_read_from_the_file(tmp_path):
    """One case only, without the hidden states; then a block that the weights do not hold."""
    copied(tmp_path, "backbone_weights.safetensors", "backbone_config.json", "backbone_io.safetensors")
    path = tmp_path / "backbone_io.safetensors"
    tensors, _ = read(path)
    one = {k: v for k, v in tensors.items() if k.startswith("case1.") and "block" not in k}
    save_file(one, path)
    line = by_file(tmp_path)["backbone_io.safetensors"]
    assert (line.status, line.compared) == ("passed", 3)
    save_file({**one, "case1.block7": tensors["case1.block0"]}, path)
    assert "block7" in by_file(tmp_path)["backbone_io.safetensors"].detail


def test_incomplete_files_fail_by_name(tmp_path):
    copied(tmp_path, "nft_loss.safetensors", "backbone_io.safetensors")
    edit_tensors(tmp_path / "nft_loss.safetensors", lambda t: t.pop("case2.v_old"))
    (tmp_path / "prompt_cleaning.json").write_text("[1")
    (tmp_path / "wan_schedule.safetensors").write_bytes(b"\x00" * 20)
    lines = by_file(tmp_path)
    assert {line.status for line in lines.values()} == {"failed"}
    assert "case2.v_old" in lines["nft_loss.safetensors"].detail
    assert "backbone_weights.safetensors" in lines["backbone_io.safetensors"].detail


def test_an_empty_file_is_not_a_pass(tmp_path):
    (tmp_path / "prompt_cleaning.json").write_text("[]")
    (tmp_path / "old_policy_decay.json").write_text("{}")
    assert {line.status for line in run_golden(tmp_path)} == {"failed"}


def test_parts_alone_are_skipped(tmp_path):
    copied(tmp_path, *PARTS)
    lines = run_golden(tmp_path)
    assert {line.file for line in lines} == set(PARTS)
    assert {line.status for line in lines} == {"skipped"}


def test_a_folder_without_golden_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="holds no golden file"):
        run_golden(tmp_path)
    with pytest.raises(InputError, match="not a directory"):
        run_golden(tmp_path / "absent")


def edit_weights(folder, name, change):
    copied(folder, *PARTS, "text_encoder_io.safetensors", "vae_io.safetensors")
    edit_tensors(folder / name, change)
    return {file for file, line in by_file(folder).items() if line.status == "failed"}


@pytest.mark.parametrize(
    ("name", "key", "failed"),
    [
        ("text_encoder_weights.safetensors", "blocks.1.ffn.gate.0.weight", "text_encoder_io.safetensors"),
        ("text_encoder_weights.safetensors", "token_embedding.weight", "text_encoder_io.safetensors"),
        ("vae_weights.safetensors", "encoder.head.0.gamma", "vae_io.safetensors"),
        ("vae_weights.safetensors", "decoder.upsamples.1.upsamples.3.time_conv.weight", "vae_io.safetensors"),
    ],
)
def test_one_wrong_weight_fails_its_network(tmp_path, name, key, failed):
    assert edit_weights(tmp_path, name, lambda t: t[key].mul_(1.01)) == {failed}


def test_weights_under_unknown_names_fail_by_name(tmp_path):
    failed = edit_weights(tmp_path, "vae_weights.safetensors", lambda t: t.update(extra=torch.zeros(1)))
    assert failed == {"vae_io.safetensors"}
    assert "extra" in by_file(tmp_path)["vae_io.safetensors"].detail


def test_other_cases_of_the_networks_are_read_from_the_file(tmp_path):
    """Two named cases, of which the second is cut to one prompt; statistics of the VAE at the file's top."""
    copied(tmp_path, *PARTS)
    text, _ = read(GOLDEN / "text_encoder_io.safetensors")
    both = {f"case0.{key}": value.clone() for key, value in text.items()}
    both |= {f"case1.{key}": value[1:].clone() for key, value in text.items()}
    save_file(both, tmp_path / "text_encoder_io.safetensors")
    video, _ = read(GOLDEN / "vae_io.safetensors")
    save_file(
        {key if key in ("mean", "std") else f"clip.{key}": value for key, value in video.items()},
        tmp_path / "vae_io.safetensors",
    )
    lines = by_file(tmp_path)
    found = {name: (line.status, line.compared) for name, line in lines.items() if name.endswith("_io.safetensors")}
    assert found == {"text_encoder_io.safetensors": ("passed", 5), "vae_io.safetensors": ("passed", 3)}


def test_what_lies_past_the_mask_counts_in_the_context_only(tmp_path):
    copied(tmp_path, *PARTS, "text_encoder_io.safetensors")
    path = tmp_path / "text_encoder_io.safetensors"

    def past_the_mask(tensors, name):
        rows, columns = (tensors["mask"] == 0).nonzero()[0]
        tensors[name][rows, columns, 0] += 1.0

    edit_tensors(path, lambda t: past_the_mask(t, "hidden"))
    assert by_file(tmp_path)[path.name].status == "passed"
    edit_tensors(path, lambda t: past_the_mask(t, "context"))
    assert by_file(tmp_path)[path.name].status == "failed"
