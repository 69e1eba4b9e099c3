"""The CPU benchmarks, tiny: their inputs are accepted, their parts run, their costs are those of the command."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stateplay_rl.cli.main import main as sprl

BENCHMARKS = Path(__file__).resolve().parents[1] / "examples" / "benchmarks"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`cpu_rows`, imported as its own folder's script."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cpu_rows

    return cpu_rows


def test_a_cost_is_that_of_the_command(modules: ModuleType) -> None:
    """Half a second of work and 100 MB; and a failure is one, with its last words."""
    work = "import time; b = bytearray(100 << 20); t = time.process_time()\nwhile time.process_time() - t < 0.5: pass"
    cost = modules.run([sys.executable, "-c", work])
    assert 0.5 <= cost.cpu_seconds < 5
    assert 100 < cost.peak_megabytes < 200
    with pytest.raises(RuntimeError, match="ended with 3:\nlast words"):
        modules.run([sys.executable, "-c", "import sys; print('last words'); sys.exit(3)"])
    assert modules.run([sys.executable, "-c", "raise SystemExit(3)"], accept=(0, 3)).cpu_seconds > 0


def test_processes_that_nobody_waits_for_count_too(modules: ModuleType) -> None:
    """A worker of the fork server is reaped by the server, so its seconds are in no account of the program."""
    worker = "import time\nt = time.process_time()\nwhile time.process_time() - t < 1.5: pass"
    program = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=-1).stdout.read()"
    assert modules.run([sys.executable, "-c", program, worker]).cpu_seconds > 1.0


def test_clips_of_the_benchmark_are_conditions(modules: ModuleType, tmp_path: Path) -> None:
    csv_file = modules.cpu_inputs.write_video_clips(tmp_path / "videos", 5, 64, 96, drawn=2)
    folders = modules.cpu_inputs.write_clip_folders(tmp_path / "folders", 5, pictures=2)
    arena = ["--preset", "arena", "--set", "clip.action_window=10", "--set", "hud=none", "--workers", "1", "--quiet"]
    for source in (["--csv", str(csv_file)], ["--clips", str(folders)]):
        out = tmp_path / source[0][2:]
        assert sprl(["build-conditions", *source, *arena, "--heldout", "1", "--out", str(out)]) == 0
        assert json.loads((out / "summary.json").read_text())["eligible"] == 5


def test_a_checkpoint_without_content_has_its_size(modules: ModuleType, tmp_path: Path) -> None:
    path = modules.cpu_inputs.write_sparse_checkpoint(tmp_path / "x.safetensors", 1.0)
    assert 1.0e9 < path.stat().st_size < 1.4e9
    assert path.stat().st_blocks * 512 < 1e6


def test_rows_of_the_same_name_are_replaced(modules: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    for value in (1, 2):
        modules.merge(file, [{"row": "a", "value": value}, {"row": f"b{value}", "value": 0}])
    rows = {line["row"]: line["value"] for line in json.loads(file.read_text())["rows"]}
    assert rows == {"a": 2, "b1": 0, "b2": 0}


@pytest.mark.slow
def test_growth_runs_all_three_commands(modules: ModuleType, tmp_path: Path) -> None:
    modules.main(["--out", str(tmp_path), "--only", "growth", "--counts", "12,24"])
    with (tmp_path / "growth.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["command"], line["conditions"]) for line in lines] == [
        (command, count) for command in ("build-conditions", "score", "report") for count in ("12", "24")
    ]
    assert (tmp_path / "growth.png").stat().st_size > 10_000
    # Measured again alone, a command's lines are replaced and the others stay.
    modules.main(["--out", str(tmp_path), "--only", "growth", "--counts", "12,48", "--commands", "build-conditions"])
    with (tmp_path / "growth.csv").open() as file:
        again = list(csv.DictReader(file))
    assert [line["conditions"] for line in again] == ["12", "24", "48", "12", "24", "12", "24"]
    assert again[3:] == lines[2:]


def test_the_audit_of_samplers_compares_with_its_first_row(
    modules: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import samplers

    from stateplay_rl.config.rollout import SamplingConfig

    chosen = [SamplingConfig(steps=3), SamplingConfig(steps=4, solver="ab2"), SamplingConfig(steps=3)]
    monkeypatch.setattr(samplers, "samplers", lambda: chosen)
    samplers.main(["--out", str(tmp_path), "--conditions", "1", "--candidates", "2"])
    first, other, same = json.loads((tmp_path / "samplers.json").read_text())["rows"]
    assert (same["psnr_db"], same["ssim"], same["latent_rms_to_euler30"], same["score_change"]) == (None, 1.0, 0.0, 0.0)
    assert same["ranking_agreement"] == first["ranking_agreement"] == 1.0
    assert 0 < other["latent_rms_to_euler30"] < 1
    assert other["latent_rms_to_solution"] == 0.0
    assert 10 < other["psnr_db"] < 60
    with (tmp_path / "samplers.csv").open() as file:
        assert [row["sampler"] for row in csv.DictReader(file)] == ["euler", "ab2", "euler"]
