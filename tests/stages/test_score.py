"""`sprl score`: sealed and open groups, every judge, resume after a kill, refusals."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from stateplay_rl.cli import score as cli
from stateplay_rl.config.base import FrozenConfig, load_config
from stateplay_rl.config.score import JudgeConfig, ScoreConfig
from stateplay_rl.errors import (
    CorruptionError,
    InputError,
    OutputError,
    SprlError,
    UnsealedError,
    UsageError,
)
from stateplay_rl.stages.group_source import open_groups
from stateplay_rl.stages.judge_choice import make_judge
from stateplay_rl.stages.score import ScoreInputs, run
from stateplay_rl.stores.groups import GroupRecord, GroupStore
from stateplay_rl.stores.manifest import OutputDirectory, read_manifest
from stateplay_rl.stores.scores import ScoreTable

PLUGIN = '''
import hashlib, os, time
from stateplay_rl.judges.base import failed, scored

class ByHash:
    """Points from the group's id; one id in five fails; may be slow, may note its calls in a file."""
    judge_id = "by-hash"

    def __init__(self, seconds=0.0, calls="", version="1"):
        self.seconds, self.calls = seconds, calls
        self.protocol_sha256 = hashlib.sha256(version.encode()).hexdigest()

    def score_group(self, group):
        time.sleep(self.seconds)
        if self.calls:
            with open(self.calls, "a") as file:
                file.write(group.record.group_id + "\\n")
        digest = hashlib.sha256(group.record.group_id.encode()).digest()
        if digest[0] % 5 == 0:
            return failed(group.record.candidates, "no_json: for " + group.record.group_id)
        return scored([byte * 100 / 255 for byte in digest[:group.record.candidates]],
                      details={"candidates": [{"byte": byte} for byte in digest[:4]]})
'''


class WorldOnly(FrozenConfig):
    """Stands for a rollout's config: the world is all that `score` reads of it."""

    world: str = "arena"


def write_group(store: GroupStore, number: int) -> str:
    """A small group of four candidates, 5 frames of 16x16."""
    rng = np.random.default_rng(number)
    group_id = f"{rng.integers(2**62):016x}"
    record = GroupRecord(
        group_id=group_id,
        condition_id=f"c{number}",
        batch=0,
        policy_sha256="0" * 64,
        world_sha256="1" * 64,
        sampler="euler",
        sampling_steps=2,
        seeds=(1, 2, 3, 4),
        prompt="walks",
        fps=20.0,
        frames=5,
        latent_frames=2,
        buttons=((0,) * 11,) * 5,
        action_bin_edges=((0, 3), (3, 5)),
        mechanics_class=("normal", "macro_hit")[number % 2],
    )
    frames = [rng.integers(0, 255, (5, 16, 16, 3), np.uint8) for _ in range(4)]
    latents = [torch.zeros(2, 2, 1, 1, dtype=torch.bfloat16) for _ in range(4)]
    store.write(record, frames[0][0], latents, frames)
    return group_id


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """A sealed `groups/` directory with 12 groups."""
    return seal_groups(tmp_path / "groups", 12)


def seal_groups(path: Path, count: int, world: str = "arena") -> Path:
    with OutputDirectory.open(
        path,
        schema="groups",
        version=1,
        command="rollout",
        config=WorldOnly(world=world),
        inputs={},
        resume=False,
        overwrite=False,
    ) as output:
        for number in range(count):
            write_group(GroupStore(path), number)
        output.seal()
    return path


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "plugins"
    folder.mkdir()
    name = f"score_plugin_{os.getpid()}_{abs(hash(tmp_path))}"
    (folder / f"{name}.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(folder)
    return f"{name}:ByHash"


def plugin_config(plugin: str, **options: object) -> ScoreConfig:
    return ScoreConfig(judge=JudgeConfig(name=plugin, options=options))


def rows_of(folder: Path) -> list:
    return list(ScoreTable.read(folder / "scores.parquet").rows)


def test_every_group_gets_its_rows_and_the_summary_adds_up(groups: Path, plugin: str, tmp_path: Path) -> None:
    summary = run(plugin_config(plugin), ScoreInputs(groups), tmp_path / "scores")
    rows = rows_of(summary.out)
    assert len(rows) == 12 * 4
    assert {row.group_id for row in rows} == set(GroupStore(groups).finished())
    points = [row.score for row in rows if row.score is not None]
    assert summary.failed == len({row.group_id for row in rows if row.score is None}) > 0
    assert summary.scored == 12 - summary.failed
    assert summary.reward_mean == pytest.approx(np.mean(points))
    assert summary.failed_reasons == {"no_json": summary.failed}
    by_group = [[r.score for r in rows if r.group_id == g] for g in {r.group_id for r in rows if r.score is not None}]
    assert summary.std_within == pytest.approx(np.mean([np.std(scores) for scores in by_group]))
    assert set(summary.reward_by_class) == {"normal", "macro_hit"}
    manifest = read_manifest(summary.out, schema="scores", verify_files=True)
    assert manifest.inputs["groups"].sha256 == read_manifest(groups).sha256
    assert manifest.extra["group_sha256"].keys() == set(GroupStore(groups).finished())
    lines = [json.loads(line) for line in (summary.out / "verdicts.jsonl").read_text().splitlines()]
    assert [line["group_id"] for line in lines] == sorted(line["group_id"] for line in lines)
    assert any(line["details"].get("candidates") for line in lines)


def test_a_missing_score_is_null_with_a_reason(groups: Path, plugin: str, tmp_path: Path) -> None:
    out = run(plugin_config(plugin), ScoreInputs(groups), tmp_path / "scores").out
    for row in rows_of(out):
        assert (row.score is None) == (row.status == "failed") == bool(row.reason)


def test_limit_takes_the_first_by_id(groups: Path, plugin: str, tmp_path: Path) -> None:
    config = plugin_config(plugin).model_copy(update={"limit": 5})
    out = run(config, ScoreInputs(groups), tmp_path / "scores").out
    assert sorted({row.group_id for row in rows_of(out)}) == sorted(GroupStore(groups).finished())[:5]


def test_replay_gives_the_same_scores_and_fails_what_it_lacks(groups: Path, plugin: str, tmp_path: Path) -> None:
    limited = plugin_config(plugin).model_copy(update={"limit": 8})
    first = run(limited, ScoreInputs(groups), tmp_path / "first").out
    config = ScoreConfig(judge=JudgeConfig(name="replay", scores=first))
    second = run(config, ScoreInputs(groups), tmp_path / "second")
    before = {(r.group_id, r.candidate): (r.score, r.status) for r in rows_of(first)}
    after = {(r.group_id, r.candidate): (r.score, r.status) for r in rows_of(second.out)}
    assert {key: after[key] for key in before} == before
    assert second.failed_reasons["replay_missing"] == 4
    assert all(after[key][1] == "failed" for key in after.keys() - before.keys())
    assert read_manifest(second.out).inputs["scores-0"].sha256 == read_manifest(first).sha256


def test_replay_refuses_unfinished_and_damaged_scores(groups: Path, plugin: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnsealedError):
        make_judge(JudgeConfig(name="replay", scores=tmp_path / "empty"), world="arena")
    with pytest.raises(InputError):
        make_judge(JudgeConfig(name="replay", scores=groups), world="arena")
    first = run(plugin_config(plugin), ScoreInputs(groups), tmp_path / "first").out
    data = bytearray((first / "scores.parquet").read_bytes())
    data[len(data) // 2] ^= 255
    (first / "scores.parquet").write_bytes(data)
    with pytest.raises(CorruptionError):
        make_judge(JudgeConfig(name="replay", scores=first), world="arena")


def test_a_mix_of_a_plugin_and_a_replay(groups: Path, plugin: str, tmp_path: Path) -> None:
    """Two parts that agree give their common score; 8 groups are known to both."""
    limited = plugin_config(plugin).model_copy(update={"limit": 8})
    first = run(limited, ScoreInputs(groups), tmp_path / "first").out
    config = load_config(
        ScoreConfig,
        None,
        [
            "judge.name=mix",
            f"judge.parts.live.name='{plugin}'",
            "judge.parts.live.weight=2",
            "judge.parts.kept.name=replay",
            f"judge.parts.kept.scores={first}",
            "judge.parts.kept.weight=1",
        ],
    )
    mixed = {(r.group_id, r.candidate): r for r in rows_of(run(config, ScoreInputs(groups), tmp_path / "mix").out)}
    for row in rows_of(first):
        other = mixed[row.group_id, row.candidate]
        assert other.status == row.status
        assert other.score == (None if row.score is None else pytest.approx(row.score))
    assert sum(row.status == "failed" for row in mixed.values()) >= 16


def test_finished_rows_are_kept_on_resume_and_nothing_is_judged_twice(
    groups: Path, plugin: str, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    config = plugin_config(plugin, calls=str(calls))
    whole = run(config, ScoreInputs(groups), tmp_path / "whole").out
    broken = tmp_path / "broken"
    calls.unlink()
    first = sorted(GroupStore(groups).finished())[6]
    video = GroupStore(groups).read(first).candidate_video(2)
    good = video.read_bytes()
    video.write_bytes(good[:-1] + b"\0")
    with pytest.raises(CorruptionError, match=r"candidate_2\.mp4"):
        run(config, ScoreInputs(groups), broken)
    with (broken / "verdicts.jsonl").open("ab") as file:
        file.write(b'{"group_id": "half a li')
    video.write_bytes(good)
    with pytest.raises(OutputError, match="unfinished"):
        run(config, ScoreInputs(groups), broken)
    run(config, ScoreInputs(groups, resume=True), broken)
    assert calls.read_text().split() == sorted(GroupStore(groups).finished())
    for name in ("scores.parquet", "verdicts.jsonl", "groups_read.json"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()


def test_a_resume_with_another_judge_or_version_is_refused(groups: Path, plugin: str, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    run(plugin_config(plugin).model_copy(update={"limit": 3}), ScoreInputs(groups), out)
    (out / "manifest.json").rename(tmp_path / "kept")
    with pytest.raises(SprlError):
        run(plugin_config(plugin, version="2"), ScoreInputs(groups, resume=True), out)


def test_finished_outputs(groups: Path, plugin: str, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    first = run(plugin_config(plugin), ScoreInputs(groups), out)
    with pytest.raises(OutputError, match="finished"):
        run(plugin_config(plugin), ScoreInputs(groups), out)
    again = run(plugin_config(plugin), ScoreInputs(groups, resume=True), out)
    assert again == replace(first, already_done=True)
    with pytest.raises(UsageError):
        run(plugin_config(plugin, version="2"), ScoreInputs(groups, resume=True), out)
    assert run(plugin_config(plugin), ScoreInputs(groups, overwrite=True), out) == first
    with pytest.raises(OutputError):
        run(plugin_config(plugin), ScoreInputs(groups, overwrite=True), groups)


def _open_run(path: Path, count: int) -> GroupStore:
    (path / "segments" / "000-a" / "groups").mkdir(parents=True)
    (path / "ledger.sqlite").write_bytes(b"")
    store = GroupStore(path / "segments" / "000-a" / "groups")
    for number in range(count):
        write_group(store, number)
    return store


def test_the_finished_groups_of_an_open_run(plugin: str, tmp_path: Path) -> None:
    store = _open_run(tmp_path / "run", 4)
    (store.root / "halfdone").mkdir()
    for place in (tmp_path / "run", tmp_path / "run" / "segments" / "000-a", store.root):
        source = open_groups(place)
        assert not source.sealed
        assert tuple(source.roots) == store.finished()
    out = run(plugin_config(plugin), ScoreInputs(tmp_path / "run"), tmp_path / "scores").out
    assert read_manifest(out).extra["group_sha256"] == store.hashes()


def test_a_resume_on_an_open_run_keeps_to_the_groups_that_it_first_saw(plugin: str, tmp_path: Path) -> None:
    store = _open_run(tmp_path / "run", 4)
    first = store.finished()
    video = store.read(first[2]).candidate_video(0)
    good = video.read_bytes()
    video.write_bytes(b"x")
    with pytest.raises(CorruptionError):
        run(plugin_config(plugin), ScoreInputs(tmp_path / "run"), tmp_path / "scores")
    video.write_bytes(good)
    write_group(store, 99)
    out = run(plugin_config(plugin), ScoreInputs(tmp_path / "run", resume=True), tmp_path / "scores").out
    assert {row.group_id for row in rows_of(out)} == set(first)


def test_groups_that_cannot_be_read(plugin: str, tmp_path: Path, groups: Path) -> None:
    config = plugin_config(plugin)
    with pytest.raises(InputError, match="no directory"):
        run(config, ScoreInputs(tmp_path / "nowhere"), tmp_path / "out")
    (tmp_path / "foreign").mkdir()
    with pytest.raises(InputError):
        run(config, ScoreInputs(tmp_path / "foreign"), tmp_path / "out")
    scores = run(config, ScoreInputs(groups), tmp_path / "scores").out
    with pytest.raises(InputError, match="not groups"):
        run(config, ScoreInputs(scores), tmp_path / "out")
    with pytest.raises(InputError, match="no finished group"):
        run(config, ScoreInputs(seal_groups(tmp_path / "none", 0)), tmp_path / "out")
    (groups / "manifest.json").rename(tmp_path / "kept.json")
    with pytest.raises(UnsealedError):
        run(config, ScoreInputs(groups), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_referee_refuses_other_worlds(tmp_path: Path) -> None:
    groups = seal_groups(tmp_path / "real", 1, world="worlds/stateplay-5b.yaml")
    config = ScoreConfig(judge=JudgeConfig(name="referee"))
    with pytest.raises(UsageError, match=r"worlds/stateplay-5b\.yaml"):
        run(config, ScoreInputs(groups), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_referee_is_found_for_arena_and_for_world_files_of_its_preset(tmp_path: Path) -> None:
    spec = JudgeConfig(name="referee")
    assert make_judge(spec, world="arena").judge_id == "arena-referee"
    for preset in ("arena", "stateplay-5b"):
        files = "checkpoint: a, transition_tokenizer: b, vae: c, text_encoder: d, text_tokenizer: e"
        text = f"name: mine\npreset: {preset}\nfiles: {{{files}}}\n"
        (tmp_path / f"{preset}.yaml").write_text(text)
    assert make_judge(spec, world=str(tmp_path / "arena.yaml")).judge_id == "arena-referee"
    with pytest.raises(UsageError, match="arena's own pixels"):
        make_judge(spec, world=str(tmp_path / "stateplay-5b.yaml"))


@pytest.mark.parametrize(
    "overrides",
    [
        ["judge.name=replay"],
        ["judge.name=referee", "judge.scores=x"],
        ["judge.name=mix"],
        ["judge.name=referee", "judge.options={a: 1}"],
        ["judge.name=mix", "judge.parts.a={name: mix, weight: 1}"],
        ["judge.name=mix", "judge.parts.a={name: referee, weight: 0}"],
        ["judge.name=mix", "judge.parts.a={name: referee}"],
        ["judge.nam=referee"],
        ["limit=0"],
        ["judge.name=referee", "judge.model=other"],
        ["judge.name=referee", "judge.base_url=http://127.0.0.1/v1"],
        ["judge.base_url=ftp://host/v1"],
        ["judge.base_url=https://user:secret@host/v1"],
        ["judge.base_url=https://host/v1?key=secret"],
        ["judge.api_key_env=sk-0123456789"],
        ["judge.requests.in_flight=31"],
        ["judge.requests.max_cost=5"],
        ["judge.protocol.mode=production"],
    ],
)
def test_settings_that_do_not_fit(overrides: list[str]) -> None:
    with pytest.raises(UsageError):
        load_config(ScoreConfig, None, overrides)


def test_the_command_prints_a_table(groups: Path, plugin: str, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(cli.command)
    arguments = [str(groups), "--judge", plugin, "--out", str(tmp_path / "scores"), "--quiet"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert "by-hash" in result.output
    assert "of 12 groups" in result.output
    assert "no_json" in result.output


def _start(groups: Path, plugin: str, plugins: Path, out: Path, *flags: str) -> subprocess.Popen:
    code = (
        "import sys; from pathlib import Path\n"
        "from stateplay_rl.config.score import JudgeConfig, ScoreConfig\n"
        "from stateplay_rl.stages.score import ScoreInputs, run\n"
        f"config = ScoreConfig(judge=JudgeConfig(name={plugin!r}, options={{'seconds': 0.05}}))\n"
        f"run(config, ScoreInputs(Path({str(groups)!r}), resume='resume' in sys.argv), Path({str(out)!r}))\n"
    )
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{plugins}{os.pathsep}{root}"}
    return subprocess.Popen([sys.executable, "-c", code, *flags], env=env, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_killed_at_random_points_and_resumed_gives_identical_files(groups: Path, plugin: str, tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert _start(groups, plugin, plugins, whole).wait(120) == 0
    rng = random.Random(5)
    flags: tuple[str, ...] = ()
    kills = 0
    for _ in range(20):
        process = _start(groups, plugin, plugins, killed, *flags)
        log = killed / "verdicts.jsonl"
        before = log.stat().st_size if log.exists() else 0
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if log.exists() and log.stat().st_size > before:
                time.sleep(rng.uniform(0.0, 0.12))
                break
            time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait(60)
        flags = ("resume",)
        if (killed / "manifest.json").exists():
            break
    assert _start(groups, plugin, plugins, killed, "resume").wait(120) == 0
    assert kills >= 3
    for name in ("scores.parquet", "verdicts.jsonl", "groups_read.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert not (killed / "unfinished.json").exists()


def test_the_referee_scores_real_arena_groups_end_to_end(tmp_path: Path) -> None:
    """Two groups: the engine's own rendering, two glitched twins, a frozen first frame."""
    from stateplay_rl.arena.dataset import draw_conditions, simulate
    from stateplay_rl.arena.renderer import render
    from stateplay_rl.arena.state import Glitches

    path = tmp_path / "groups"
    with OutputDirectory.open(
        path,
        schema="groups",
        version=1,
        command="rollout",
        config=WorldOnly(),
        inputs={},
        resume=False,
        overwrite=False,
    ) as output:
        for condition in draw_conditions(2, seed=11):
            truth = render(simulate(condition))
            frozen = np.repeat(truth[:1], len(truth), axis=0)
            twin = render(simulate(condition, Glitches(hits_drain_nothing=True, specials_cost_nothing=True)))
            record = GroupRecord(
                group_id=f"arena{condition.index}",
                condition_id=f"c{condition.index}",
                batch=0,
                policy_sha256="0" * 64,
                world_sha256="1" * 64,
                sampler="euler",
                sampling_steps=2,
                seeds=(1, 2, 3),
                prompt=condition.prompt,
                fps=20.0,
                frames=len(truth),
                latent_frames=9,
                buttons=tuple(tuple(int(v) for v in row) for row in condition.held_buttons),
                action_bin_edges=((0, 1),),
                mechanics_class=condition.mechanics_class,
            )
            latents = [torch.zeros(2, 2, 1, 1, dtype=torch.bfloat16) for _ in range(3)]
            GroupStore(path).write(record, truth[0], latents, [truth, twin, frozen])
        output.seal()
    summary = run(ScoreConfig(judge=JudgeConfig(name="referee")), ScoreInputs(path), tmp_path / "scores")
    assert (summary.scored, summary.failed) == (2, 0)
    scores = ScoreTable.read(summary.out / "scores.parquet")
    for group in scores:
        engine, twin_score, frozen_score = group.scores
        assert engine > 95
        assert frozen_score < 30
        assert twin_score < engine
    lines = (summary.out / "verdicts.jsonl").read_text().splitlines()
    assert len(json.loads(lines[0])["details"]["candidates"]) == 3
