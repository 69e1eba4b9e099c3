"""The whole build: real clips, equal output whatever the workers, kills and resumes, refusals."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from stateplay_rl.conditions.cache import RowCache
from stateplay_rl.conditions.examine import Outcome
from stateplay_rl.config.base import load_config
from stateplay_rl.config.conditions import ConditionsConfig
from stateplay_rl.errors import CheckError, InputError, OutputError, UnsealedError, UsageError
from stateplay_rl.stages.build_conditions import BuildMode, ConditionSources, run
from stateplay_rl.stores.conditions import ConditionStore, read_rejected
from stateplay_rl.stores.hashing import hash_frames
from stateplay_rl.stores.manifest import read_manifest
from stateplay_rl.stores.video import encode_mp4
from stateplay_rl.worlds.preparation import bin_actions
from tests.conditions.clip_factory import (
    FAULTS,
    arena_config,
    make_clip,
    make_clip_folder,
    make_rows,
    pictures,
    real_clips,
    table,
    write_actions,
    write_csv,
)

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 sound clips, every kind of damaged one, and rows that repeat."""
    root = tmp_path_factory.mktemp("data")
    rows = make_rows(root, 30)
    for number, fault in enumerate(sorted(FAULTS)):
        rows.append(make_clip(root, f"bad{number:02d}", 100 + number))
        FAULTS[fault][0](root / f"bad{number:02d}")
    rows.append(rows[3])
    shutil.copytree(root / "clip004", root / "again")
    rows.append({**rows[4], "video": "again/video.mp4", "action": "again\\actions.parquet"})
    write_csv(root / "metadata.csv", rows)
    return root


def contents(out: Path) -> dict[str, bytes]:
    """Everything but the manifest, which holds times and an id of the run."""
    files = [path for path in out.rglob("*") if path.is_file()]
    return {str(path.relative_to(out)): path.read_bytes() for path in files if path.name != "manifest.json"}


def build(data: Path, out: Path, *overrides: str, **mode: object) -> ConditionStore:
    config = arena_config("split.heldout=6", *overrides)
    run(config, ConditionSources(csv=data / "metadata.csv"), out, BuildMode(**mode))  # type: ignore[arg-type]
    return ConditionStore.open(out)


def test_every_row_is_either_eligible_or_rejected_with_its_reason(data: Path, tmp_path: Path) -> None:
    store = build(data, tmp_path / "out")
    rejected = {row.row: row for row in read_rejected(tmp_path / "out")}
    assert len(store) == 30
    for number, fault in enumerate(sorted(FAULTS), 31):
        assert rejected[number].reason == FAULTS[fault][1], fault
        assert rejected[number].path == f"bad{number - 31:02d}/video.mp4"
    last = max(rejected)
    assert (rejected[last - 1].reason, rejected[last - 1].detail) == ("duplicate_row", "equals row 4")
    assert (rejected[last].reason, rejected[last].detail) == ("duplicate_content", "equals row 5")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["eligible"] + summary["rejected"] == summary["rows_examined"] == last
    counts = Counter(row.reason for row in rejected.values())
    assert {code: facts["rows"] for code, facts in summary["rejected_by_code"].items()} == counts
    assert summary["warnings_by_code"]["video_cut"] == {
        "conditions": 30,
        "count": 90,
        "meaning": summary["warnings_by_code"]["video_cut"]["meaning"],
    }
    assert summary["clusters"]["evidence"] == "inferred"
    assert "inferred" in summary["clusters"]["statement"]


def test_records_agree_with_their_files(data: Path, tmp_path: Path) -> None:
    store = build(data, tmp_path / "out")
    read_manifest(tmp_path / "out", schema="conditions", verify_files=True)
    for record in store.records:
        frame = store.first_frame(record.condition_id)
        assert frame.shape == (64, 96, 3)
        assert hash_frames(frame) == record.first_frame_sha256
        held, raw = store.held_actions(record.condition_id), store.raw_actions(record.condition_id)
        assert held.shape == (record.action_rows, 11)
        assert np.array_equal(held, np.repeat(raw[::4], 4, axis=0))
        assert bin_actions(held, record.latent_frames).shape == (record.latent_frames, 11)
        assert set(store.states(record.condition_id)) >= {"timer", "p1_hp"}
        assert store.clip_path(record) == data / str(record.clip)
        assert record.mechanics_class == record.distribution.lower()
    assert [record.order for record in store.select("pass")] == list(range(24))
    assert Counter(record.pool for record in store.records) == {"pass": 24, "heldout": 6}
    assert set(json.loads((tmp_path / "out" / "manifest.json").read_text())["seeds"]) == {"split"}


def test_only_contents_of_eligible_conditions_are_left(data: Path, tmp_path: Path) -> None:
    store = build(data, tmp_path / "out")
    ids = {record.condition_id for record in store.records}
    assert {path.stem for path in (tmp_path / "out" / "frames").iterdir()} == ids
    assert not (tmp_path / "out" / "work").exists()
    assert not (tmp_path / "out" / "unfinished.json").exists()


def test_output_is_the_same_whatever_the_number_of_workers(data: Path, tmp_path: Path) -> None:
    for workers in (1, 2, 3):
        build(data, tmp_path / f"out{workers}", workers=workers)
    assert contents(tmp_path / "out1") == contents(tmp_path / "out2") == contents(tmp_path / "out3")


def test_records_do_not_depend_on_the_order_of_the_rows(data: Path, tmp_path: Path) -> None:
    for name in ("forward", "backward"):
        rows = [make_clip(tmp_path / name, f"clip{seed}", seed) for seed in range(8)]
        write_csv(tmp_path / name / "metadata.csv", rows if name == "forward" else rows[::-1])
    tables = [build(tmp_path / name, tmp_path / f"{name}.out").records for name in ("forward", "backward")]
    assert tables[0] == tables[1]


def test_killed_and_resumed_is_the_same_as_uninterrupted(data: Path, tmp_path: Path) -> None:
    """SIGKILL at seeded random moments, again and again, until a resume gets through."""
    build(data, tmp_path / "whole")
    out = tmp_path / "killed"
    code = (
        "import sys; from pathlib import Path\n"
        "from stateplay_rl.stages.build_conditions import *\n"
        "from tests.conditions.clip_factory import arena_config\n"
        "NAMES = ('unfinished.json', 'manifest.json')\n"
        "if __name__ == '__main__':\n"
        "    csv, out, workers = Path(sys.argv[1]) / 'metadata.csv', Path(sys.argv[2]), int(sys.argv[3])\n"
        "    mode = BuildMode(workers, resume=any((out / n).exists() for n in NAMES))\n"
        "    run(arena_config('split.heldout=6'), ConditionSources(csv=csv), out, mode)\n"
    )
    script = tmp_path / "build.py"
    script.write_text(code)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    waits = random.Random(0)
    log = out / "work" / "rows.jsonl"
    kills = 0
    for attempt in range(20):
        before = log.stat().st_size if log.exists() else 0
        command = [sys.executable, str(script), str(data), str(out), str(1 + attempt % 2)]
        process = subprocess.Popen(command, env=environment, cwd=root, stderr=subprocess.PIPE, text=True)
        # Count from the first sign of work: the imports take longer than the work itself.
        while process.poll() is None and not (log.exists() and log.stat().st_size > before):
            time.sleep(0.005)
        try:
            _, errors = process.communicate(timeout=waits.random() * (0.1 + 0.15 * attempt))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            continue
        assert process.returncode == 0, errors
        break
    assert kills > 0
    read_manifest(out, verify_files=True)
    assert contents(out) == contents(tmp_path / "whole")


def test_resume_does_no_row_twice(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[int] = []
    original = RowCache.append

    def stop_after_10(cache: RowCache, outcome: Outcome) -> None:
        if len(stored) == 10:
            raise KeyboardInterrupt
        stored.append(outcome.row)
        original(cache, outcome)

    monkeypatch.setattr(RowCache, "append", stop_after_10)
    with pytest.raises(KeyboardInterrupt):
        build(data, tmp_path / "out")
    with pytest.raises(UnsealedError):
        ConditionStore.open(tmp_path / "out")
    with pytest.raises(OutputError, match="unfinished"):
        build(data, tmp_path / "out")
    monkeypatch.setattr(RowCache, "append", original)
    result = run(
        arena_config("split.heldout=6"),
        ConditionSources(csv=data / "metadata.csv"),
        tmp_path / "out",
        BuildMode(resume=True),
    )
    assert result.reused_rows == 10
    again = run(
        arena_config("split.heldout=6"),
        ConditionSources(csv=data / "metadata.csv"),
        tmp_path / "out",
        BuildMode(resume=True),
    )
    assert again.already_sealed
    assert again.summary == result.summary


def test_resume_with_another_config_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateplay_rl.stages.build_conditions.assemble", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(data, tmp_path / "out")
    with pytest.raises(UsageError, match=r"clip\.action_window"):
        build(data, tmp_path / "out", "clip.action_window=5", resume=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_outputs_that_would_harm_are_refused(data: Path, tmp_path: Path) -> None:
    before = contents(data)
    for out in (data, data / "clip000", data.parent, data / "clip000" / "new"):
        with pytest.raises(OutputError):
            build(data, out, overwrite=True)
    build(data, tmp_path / "out")
    with pytest.raises(OutputError, match="finished"):
        build(data, tmp_path / "out")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("precious")
    with pytest.raises(OutputError, match="not empty"):
        build(data, tmp_path / "foreign")
    assert (tmp_path / "foreign" / "thesis.tex").exists()
    assert contents(data) == before


def test_output_next_to_the_csv_is_fine(tmp_path: Path) -> None:
    write_csv(tmp_path / "metadata.csv", make_rows(tmp_path / "clips", 4))
    run(
        arena_config(),
        ConditionSources(csv=tmp_path / "metadata.csv", data_root=tmp_path / "clips"),
        tmp_path / "conditions",
    )
    assert len(ConditionStore.open(tmp_path / "conditions")) == 4


def test_clips_without_video(tmp_path: Path) -> None:
    for seed in range(3):
        make_clip_folder(tmp_path / "clips", f"{seed}", seed)
    with pytest.raises(OutputError):
        run(arena_config(), ConditionSources(clips=tmp_path / "clips"), tmp_path / "clips" / "out")
    result = run(arena_config(), ConditionSources(clips=tmp_path / "clips"), tmp_path / "out")
    assert result.summary.without_video == 3
    assert all(record.clip is None for record in ConditionStore.open(tmp_path / "out").records)


def test_nothing_eligible(tmp_path: Path) -> None:
    row = make_clip(tmp_path, "clip", 0)
    write_csv(tmp_path / "metadata.csv", [{**row, "video": "gone.mp4"}])
    with pytest.raises(InputError, match=r"none of 1 rows is eligible \(missing_video 1\)"):
        run(arena_config(), ConditionSources(csv=tmp_path / "metadata.csv"), tmp_path / "out")
    with pytest.raises(UnsealedError):
        ConditionStore.open(tmp_path / "out")


@pytest.mark.parametrize(
    "sources",
    [
        ConditionSources(),
        ConditionSources(csv=Path("a"), clips=Path("b")),
        ConditionSources(clips=Path("b"), data_root=Path("c")),
    ],
)
def test_one_source_is_needed(tmp_path: Path, sources: ConditionSources) -> None:
    with pytest.raises(UsageError):
        run(arena_config(), sources, tmp_path / "out")


def one_episode(root: Path) -> Path:
    """12 clips with one picture and one state: they look like one episode."""
    rows = make_rows(root, 12)
    for seed in range(12):
        encode_mp4(root / f"clip{seed:03d}" / "video.mp4", pictures(0), 20.0)
        states = {name: table(0)[name] for name in ("p1_hp", "p2_hp", "p1_meter", "p2_meter", "timer")}
        write_actions(root / f"clip{seed:03d}" / "actions.parquet", {**table(seed), **states})
    return write_csv(root / "metadata.csv", rows)


def test_one_cluster_too_many_is_a_failed_check_and_an_index_helps(tmp_path: Path) -> None:
    csv = one_episode(tmp_path / "data")
    with pytest.raises(CheckError, match="12 of 12 clips look like one episode"):
        run(arena_config(), ConditionSources(csv=csv), tmp_path / "out")
    index = tmp_path / "episodes.csv"
    index.write_text("clip,episode\n" + "".join(f"clip{n:03d}\\video.mp4,e{n // 2}\n" for n in range(11)))
    result = run(arena_config(), ConditionSources(csv=csv, episodes=index), tmp_path / "out2")
    store = ConditionStore.open(tmp_path / "out2")
    assert result.summary.clusters["evidence"] == "given"
    assert sorted(Counter(record.cluster_id for record in store.records).values()) == [1, 2, 2, 2, 2, 2]
    assert [(row.row, row.reason) for row in read_rejected(tmp_path / "out2")] == [(12, "not_in_episodes")]
    assert "episodes" in store.manifest.inputs


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("clip\na\n", "lacks the columns episode"),
        ("clip,episode\na,\n", "empty"),
        ("clip,episode\na,1\na,2\n", "two"),
    ],
)
def test_bad_episode_index(data: Path, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "index.csv").write_text(content)
    sources = ConditionSources(csv=data / "metadata.csv", episodes=tmp_path / "index.csv")
    with pytest.raises(InputError, match=message):
        run(arena_config(), sources, tmp_path / "out")


@pytest.mark.skipif(not real_clips().is_dir(), reason="the real clips are not here")
def test_all_eight_real_clips(tmp_path: Path) -> None:
    result = run(load_config(ConditionsConfig), ConditionSources(clips=real_clips()), tmp_path / "out")
    store = ConditionStore.open(tmp_path / "out")
    assert (result.summary.eligible, result.summary.rejected) == (8, 0)
    golden_frames = json.loads((GOLDEN / "first_frames.json").read_text())
    golden_bins = load_file(GOLDEN / "action_bins.safetensors")
    seen = set()
    for record in store.records:
        assert (record.frames, record.latent_frames, record.action_rows) == (97, 25, 100)
        assert record.warnings == ("no_video", "video_cut:3")
        assert store.clip_path(record) is None
        frame = store.first_frame(record.condition_id)
        hashes = {name: entry["mean"] for name, entry in golden_frames.items()}
        (clip,) = [name for name, mean in hashes.items() if abs(frame.mean() - mean) < 1e-9]
        seen.add(clip)
        held = store.held_actions(record.condition_id)
        assert np.array_equal(held, golden_bins[f"{clip}/rows100.held"])
        assert np.array_equal(bin_actions(held, 25), golden_bins[f"{clip}/rows100.bins25"])
        assert record.npc_category in ("Defense", "Offense")
    assert seen == set(golden_frames)
    assert result.summary.picture_sizes == {"384x224": 8}
    check = result.summary.hud_check
    assert check is not None
    assert (check["reader"], check["conditions"], check["disagreeing"], check["unreadable"]) == ("sf3", 8, 0, 0)
    assert Counter(record.pool for record in store.records) == {"pass": 4, "heldout": 4}


@pytest.mark.skipif(not real_clips().is_dir(), reason="the real clips are not here")
def test_state_columns_of_another_clip_are_found_out(tmp_path: Path) -> None:
    folders = sorted(path for path in real_clips().iterdir() if path.is_dir())[:2]
    for folder, other in zip(folders, folders[::-1], strict=True):
        copy = tmp_path / "clips" / folder.name
        shutil.copytree(folder, copy)
        copy.chmod(0o755)
        (copy / "actions.parquet").unlink()
        shutil.copyfile(other / "actions.parquet", copy / "actions.parquet")
    config = load_config(ConditionsConfig, overrides=["split.heldout=0"])
    result = run(config, ConditionSources(clips=tmp_path / "clips"), tmp_path / "out")
    assert result.summary.hud_check is not None
    assert result.summary.hud_check["disagreeing"] == 2
    assert result.summary.warnings_by_code["hud_disagrees"]["conditions"] == 2
    assert any("state columns" in note for note in result.summary.notes)
    off = load_config(ConditionsConfig, overrides=["split.heldout=0", "hud=none"])
    without = run(off, ConditionSources(clips=tmp_path / "clips"), tmp_path / "off")
    assert without.summary.hud_check is None
    assert "hud_disagrees" not in without.summary.warnings_by_code


def test_an_unknown_hud_is_refused_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no HUD profile"):
        build(data, tmp_path / "out", "hud=chess")
    assert not (tmp_path / "out").exists()
