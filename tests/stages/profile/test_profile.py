"""`sprl verify profile` at arena's size on a CPU: every part of the record, and what is refused or left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stateplay_rl.cli.main import main
from stateplay_rl.config.verify import ProfileConfig
from stateplay_rl.errors import EXIT_INPUT, EXIT_OK, EXIT_USAGE
from stateplay_rl.stages.profile import student_rows, trace
from stateplay_rl.stages.profile.ceilings import Attended, Ceilings
from stateplay_rl.stages.profile.floors import Floors, transformer_work
from stateplay_rl.stages.profile.meter import Meter
from stateplay_rl.stages.profile.record import Record
from stateplay_rl.stages.profile.rows import STUDENT_ROWS, table
from stateplay_rl.stages.profile.student import StudentWorkload
from stateplay_rl.worlds.native.presets import preset
from stateplay_rl.worlds.world_files import resolve_world

CPU = Meter(torch.device("cpu"))


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("profile") / "out"
    command = "verify profile --world arena --random-weights --frames 5 --compare diffusers --row forward"
    settings = [
        "--row",
        "selective",
        "--row",
        "loop",
        "--row",
        "transformer_d",
        "--row",
        "vae_d",
        "--row",
        "comp",
        "--row",
        "checkp",
        "--row",
        "candidate, 2",
        "--row",
        "encode",
        "--row",
        "student",
    ]
    quick = ["--set", "repeats=1", "--set", "steps=2", "--set", "few_steps=3", "--set", "speed.vae=on"]
    assert main([*command.split(), *settings, *quick, "--out", str(out)]) == EXIT_OK
    found: dict[str, Any] = json.loads((out / "profile.json").read_text())
    return found


def test_rows_have_times_floors_and_no_targets_of_another_size(record: dict[str, Any]) -> None:
    rows = record["rows"]
    assert set(rows) == {
        "forward",
        "encode",
        "forward+backward",
        "candidate, 2 steps",
        "forward+backward, checkpointed",
        "selective micro-step",
        "student scores a group",
        "student LoRA step",
    }
    for name, line in rows.items():
        assert line["seconds"] > 0, name
        assert line["to_floor"] == pytest.approx(line["seconds"] / line["floor"]), name
        assert "target" not in line, name
    assert rows["selective micro-step"]["checkpointing"] == "selective"
    scored, step = rows["student scores a group"], rows["student LoRA step"]
    assert scored["tokens"] == step["tokens"] > 1000
    assert sum(scored["parts_seconds"].values()) == pytest.approx(scored["seconds"], rel=0.3)
    assert scored["floor"] < step["floor"]
    candidate = rows["candidate, 2 steps"]
    parts = candidate["parts_seconds"]
    assert set(parts) == {"first frame", "sample", "decode", "wait for the mp4 before", "mp4 (beside)"}
    beside = parts.pop("mp4 (beside)")
    assert beside > 0
    assert sum(parts.values()) == pytest.approx(candidate["seconds"], rel=0.2)


def test_the_rest_of_the_record(record: dict[str, Any]) -> None:
    assert record["world"]["tokens"] == 2 * 24
    assert record["world"]["speed"] == {"attention": None, "compiled": False, "kernels": False, "fused_vae": True}
    assert set(record["ceilings"]["attention"]) == {"torch", "flash"}  # a CPU has no other
    assert set(record["ceilings"]["unavailable"]) == {"cudnn", "efficient"}
    assert set(record["library"]) == {"decode", "encode", "forward, eager"}
    assert set(record["traces"]) == {"forward", "encode", "forward+backward"}
    for line in record["traces"].values():
        assert sum(line["kinds"].values()) == pytest.approx(1)
        assert line["top"]
    assert record["checkpointing"]["gradient_checkpointing"] == "selective"  # the only one that was asked for
    assert record["compilation"]["graphs_afterwards"] == 0
    assert record["loop_without_waiting"] == {"steps": 3, "waits": 0}
    # Nothing is compiled in float32 on a CPU: the fast way is the plain one; the VAE's order of sums is another.
    assert record["transformer_drift"] == {"fast": 0.0, "plain": 0.0, "fast_to_plain": 0.0}
    assert 0 < record["vae_drift"]["decode, ours"] < 1e-5
    assert record["vae_drift"]["decode, library"] == 0


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert main(["verify", "profile", "--world", "arena", "--cap-gib", "44", *out]) == EXIT_USAGE
    assert "there is none here" in capsys.readouterr().err
    assert main(["verify", "profile", "--world", str(tmp_path / "none.yaml"), *out]) == EXIT_INPUT
    assert main(["verify", "profile", "--world", "arena", "--frames", "8", *out]) != EXIT_OK
    capsys.readouterr()
    file = tmp_path / "checkout.yaml"
    world = resolve_world("arena").model_dump(mode="json") | {"backend": "stateplay", "checkout": str(tmp_path)}
    file.write_text(json.dumps(world))
    assert main(["verify", "profile", "--world", str(file), *out]) == EXIT_USAGE
    assert "checkout's own code" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_part_that_fails_or_comes_too_late_says_why() -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.\nmore")

    record = Record(began=0.0, limit=None)
    record.part("row", full)
    record.part("other", lambda: 7)
    assert record.values == {
        "row": {"failed": "OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB."},
        "other": 7,
    }
    late = Record(began=-100.0, limit=1.0)
    late.part("row", full)
    assert late.values == {"row": {"left_out": "out of time"}}


def test_work_of_the_real_size_by_hand() -> None:
    """A token's weights in a block: 6 x 3072^2 + 2 x 3072 x 14336 = 144.7 M, so 30 blocks x 9750 tokens x 2 = 84.65
    TFLOP; the coupling adds 2 x 3072 x 256 x 9850 x 60 = 0.93. Attention: 4 x 9750^2 x 3072 x 30 = 35.04."""
    sizes = preset("stateplay-5b")
    work = transformer_work(sizes.transformer, sizes.latent_state, 25, 390, 512)
    assert work.products == pytest.approx(84.65 + 0.93, rel=1e-3)
    assert work.attention == pytest.approx(35.04, rel=1e-3)
    attended = Attended(0.002, 0.007, 584.0, 584.0, 0.0)
    ceilings = Ceilings(800.0, {}, 4000.0, {"slow": Attended(1.0, 2.0, 1.0, 1.0, 0.0), "fast": attended}, {})
    floors = Floors.of(work, ceilings)
    assert ceilings.fastest == "fast"
    assert floors.forward == pytest.approx(85.58 / 800 + 1.87 / 584 + 30 * 0.002, rel=1e-3)
    assert floors.checkpointed == pytest.approx(floors.both + floors.forward)
    rows = {row.name: row for row in table(floors, 0.9, 0.2, (30, 12))}
    assert rows["micro-step"].floor == pytest.approx(floors.forward + floors.both)
    assert rows["candidate, 12 steps"].floor == pytest.approx(12 * floors.forward + 0.9)
    assert len(rows) == 12


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_192x208_64x4_2x1_v_bz_coopB_bias_TNT", "matrix product"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "convolution"),
        ("triton_poi_fused__scaled_dot_product_cudnn_attention__to_copy_transpose_view_2", "fused"),
        ("Memcpy DtoH (Device -> Pageable)", "copies"),
        ("reduce_kernel<512>", "other"),
    ],
)
def test_kernels_are_told_apart_by_name(name: str, kind: str) -> None:
    assert trace._kind(name) == kind


def test_a_median_and_the_first_call() -> None:
    calls: list[int] = []
    measured = CPU.measure(lambda: calls.append(len(calls)), repeats=3)
    assert len(calls) == 4
    assert measured.peak_gib is None
    assert measured.repeats == 3


def test_frames_are_whole_slots() -> None:
    with pytest.raises(ValueError, match="1 \\(mod 4\\)"):
        ProfileConfig(world="arena", frames=8)


def test_without_the_students_extra_its_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(student_rows.importlib.util, "find_spec", lambda name: None)
    ceilings = Ceilings(800.0, {}, 4000.0, {"fast": Attended(0.002, 0.007, 584.0, 584.0, 0.0)}, {})
    record = Record(0.0, None, {"rows": {}})
    student_rows.measure_student(CPU, False, ceilings, record)
    assert all("pip install" in record.values["rows"][name]["left_out"] for name in STUDENT_ROWS)


def test_the_students_floor_by_hand() -> None:
    """A token costs two operations a weight and, in a layer of full attention, two a channel for each token before it
    (half of them on average); a step is two forwards and the products of the inputs' gradients."""
    student = StudentWorkload(CPU.device, real=False)
    base = student.model.get_base_model()
    text = base.config.text_config
    linear = [m for m in base.model.language_model.modules() if isinstance(m, torch.nn.Linear)]
    counted = sum(m.weight.numel() for m in linear if m.weight.shape[0] != 16 and m.weight.shape[1] != 16)
    tower = sum(p.numel() for p in base.model.visual.parameters())
    ceilings = Ceilings(1e-6, {}, 1.0, {"a": Attended(1.0, 2.0, 1e-6, 1e-6, 0.0)}, {})
    scoring, step = (seconds * 1e6 for seconds in student.floors(ceilings))
    layers = sum(kind == "full_attention" for kind in text.layer_types)
    attention = 2 * layers * student.tokens**2 * text.num_attention_heads * text.head_dim
    vision = 2 * tower * student.visual_tokens * student.pictures.merge**2
    products = scoring - attention - vision
    assert products == pytest.approx(2 * counted * student.tokens, rel=0.1)
    assert step == pytest.approx(3 * products + 4.5 * attention, rel=1e-6)
