"""Bad input through the real command line: an exit code, what to run next, and nothing lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stateplay_rl.config.rollout import RolloutConfig
from stateplay_rl.errors import EXIT_CHECK, EXIT_INPUT, EXIT_USAGE
from stateplay_rl.stores import layout
from stateplay_rl.stores.manifest import OutputDirectory
from tests.e2e.command_line import ROOT, Arena, Result, environment, sprl, succeed, tree

TINY = ("--limit", 1)


@pytest.fixture(scope="module")
def groups(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed groups/ directory of one group."""
    out = tmp_path_factory.mktemp("refusals") / "groups"
    succeed(*arena.rollout(out, *TINY))
    return out


def unfinished(folder: Path, schema: str, copy: Path) -> Path:
    """A copy of a directory as a kill before its seal leaves it."""
    with OutputDirectory.open(
        copy,
        schema=schema,
        version=layout.SCHEMAS[schema],
        command="test",
        config=RolloutConfig(),
        inputs={},
        resume=False,
        overwrite=False,
    ):
        ignored = shutil.ignore_patterns(layout.MANIFEST, layout.LOCK, layout.CONFIG)
        shutil.copytree(folder, copy, ignore=ignored, dirs_exist_ok=True)
    return copy


def refused(result: Result, code: int, *texts: str) -> None:
    assert result.code == code, result.text
    for text in texts:
        assert text in result.text
    assert "->" in result.text
    assert "Traceback" not in result.text


def test_inputs_that_are_not_there(arena: Arena, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    lost = Arena(gone, arena.audit, gone, arena.encoded)
    refused(sprl(*lost.rollout(tmp_path / "out")), EXIT_INPUT, str(gone))
    refused(sprl(*lost.train(tmp_path / "out")), EXIT_INPUT, str(gone))
    refused(sprl("score", gone, "--judge", "referee", "--out", tmp_path / "out"), EXIT_INPUT, str(gone), "rollout")
    refused(sprl(*arena.rollout(tmp_path / "out", "--world", gone / "w.yaml")), EXIT_INPUT, "w.yaml")
    refused(sprl(*arena.train(tmp_path / "out", "--world", gone / "w.yaml")), EXIT_INPUT, "w.yaml")
    refused(sprl(*arena.rollout(tmp_path / "out", "--policy", gone / "p.safetensors")), EXIT_INPUT, "p.safetensors")
    refused(sprl(*arena.rollout(tmp_path / "out", "--config", gone / "c.yaml")), EXIT_INPUT, "c.yaml")
    assert list(tmp_path.iterdir()) == []


def test_inputs_of_another_kind(arena: Arena, groups: Path, tmp_path: Path) -> None:
    swapped = Arena(groups, arena.audit, groups, arena.encoded)
    refused(sprl(*swapped.rollout(tmp_path / "out")), EXIT_INPUT, "groups")
    refused(sprl("score", arena.conditions, "--judge", "referee", "--out", tmp_path / "out"), EXIT_INPUT, "not groups")
    wrong = Arena(arena.clips, groups, arena.conditions, arena.encoded)
    refused(sprl(*wrong.train(tmp_path / "out")), EXIT_INPUT, "groups")
    assert list(tmp_path.iterdir()) == []


def test_unfinished_inputs(arena: Arena, groups: Path, tmp_path: Path) -> None:
    conditions = unfinished(arena.conditions, "conditions", tmp_path / "conditions")
    half = Arena(arena.clips, arena.audit, conditions, arena.encoded)
    for command in (half.rollout(tmp_path / "out"), half.train(tmp_path / "out")):
        refused(sprl(*command), EXIT_INPUT, str(conditions), "--resume")
    open_groups = unfinished(groups, "groups", tmp_path / "groups")
    refused(sprl("score", open_groups, "--judge", "referee", "--out", tmp_path / "out"), EXIT_INPUT, str(open_groups))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["rollout", "train"])
def test_foreign_output(arena: Arena, tmp_path: Path, command: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("precious")
    result = sprl(*getattr(arena, command)(out))
    refused(result, EXIT_USAGE, "was not written by sprl", "--overwrite")
    assert tree(out) == {"mine.txt": b"precious"}


@pytest.mark.parametrize("command", ["rollout", "train"])
@pytest.mark.parametrize("place", [".", "run", ".."])
def test_output_over_input(arena: Arena, command: str, place: str) -> None:
    before = tree(arena.conditions)
    result = sprl(*getattr(arena, command)(arena.conditions / place))
    refused(result, EXIT_USAGE, "input", "choose another --out")
    assert tree(arena.conditions) == before


def test_a_finished_output_stays(arena: Arena, groups: Path) -> None:
    before = tree(groups)
    refused(sprl(*arena.rollout(groups, *TINY)), EXIT_USAGE, "is finished", "--overwrite")
    refused(sprl(*arena.rollout(groups, "--resume", "--overwrite")), EXIT_USAGE, "exclude each other")
    assert "was already finished" in succeed(*arena.rollout(groups, *TINY, "--resume"))
    assert tree(groups) == before


def test_overwrite_replaces(arena: Arena, groups: Path, tmp_path: Path) -> None:
    out = tmp_path / "groups"
    shutil.copytree(groups, out)
    succeed(*arena.rollout(out, *TINY, "--overwrite", "--seed", 9))
    assert {path.name for path in out.glob("*/group.json")} == {"group.json"}
    assert not {p.parent.name for p in out.glob("*/group.json")} & {p.parent.name for p in groups.glob("*/group.json")}


def test_a_resume_with_another_config(arena: Arena, groups: Path, tmp_path: Path) -> None:
    result = sprl(*arena.rollout(groups, *TINY, "--resume", "--seed", 9))
    refused(result, EXIT_USAGE, "seed: was 0, now 9", "config.yaml")


def test_unknown_and_wrong_settings(arena: Arena, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(sprl(*arena.train(out, "--set", "loss.beta=1")), EXIT_USAGE, "loss.beta", "loss.beta_nft")
    refused(sprl(*arena.train(out, "--set", "loss.beta_nft=2")), EXIT_USAGE, "beta_nft")
    refused(sprl(*arena.rollout(out, "--set", "sampling.stepz=2")), EXIT_USAGE, "sampling.steps")
    refused(sprl(*arena.train(out, "--mode", "everything")), EXIT_USAGE, "mode")
    refused(sprl(*arena.train(out, conditions_per_batch=6)), EXIT_USAGE, "no batch would ever be full")
    file = tmp_path / "config.yaml"
    file.write_text("optimizer:\n  learning_rate: 1\n")
    refused(sprl(*arena.train(out, "--config", file)), EXIT_USAGE, "learning_rate", str(file))
    assert not out.exists()


def without(command: list[str], option: str) -> list[str]:
    index = command.index(option)
    return command[:index] + command[index + 2 :]


def test_audits(arena: Arena, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(sprl(*without(arena.train(out), "--audit")), EXIT_CHECK, "has no audit", "sprl audit-ckpt --world arena")
    gone = Arena(arena.clips, tmp_path / "gone", arena.conditions, arena.encoded)
    refused(sprl(*gone.train(out)), EXIT_INPUT, "no audit directory", "sprl audit-ckpt")
    half = Arena(arena.clips, unfinished(arena.audit, "audit", tmp_path / "half"), arena.conditions, arena.encoded)
    refused(sprl(*half.train(out)), EXIT_INPUT, str(tmp_path / "half"))
    damaged = tmp_path / "damaged"
    shutil.copytree(arena.audit, damaged)
    audit = damaged / layout.AUDIT
    audit.write_text(audit.read_text().replace('"passed"', '"failed"'))
    broken = Arena(arena.clips, damaged, arena.conditions, arena.encoded)
    refused(sprl(*broken.train(out)), EXIT_INPUT, layout.AUDIT)
    assert not out.exists()


def test_an_audit_of_other_weights(arena: Arena, tmp_path: Path) -> None:
    """A world file with weights of another content than the audited ones."""
    from stateplay_rl.config.base import dump_config
    from stateplay_rl.worlds.world_files import arena_weights_folder, arena_world

    folder = tmp_path / "weights"
    shutil.copytree(arena_weights_folder(), folder)
    config = arena_world(folder)
    (checkpoint,) = config.files.checkpoint
    data = bytearray(checkpoint.read_bytes())
    data[-1] ^= 1
    checkpoint.write_bytes(bytes(data))
    world = tmp_path / "world.yaml"
    world.write_text(dump_config(config))
    result = sprl(*arena.train(tmp_path / "out", "--world", world))
    refused(result, EXIT_CHECK, "is of other files", "sprl audit-ckpt")
    assert not (tmp_path / "out").exists()


def test_a_pool_that_is_too_small(arena: Arena, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(sprl(*arena.train(out, stage_conditions=500)), EXIT_INPUT, "of pool 'pass'", "stage_conditions=20")
    many = arena.train(out, heldout__conditions=99)
    refused(sprl(*many), EXIT_INPUT, "99 are asked for", "heldout.conditions")
    refused(sprl(*arena.rollout(out, "--skip", 500)), EXIT_INPUT, "after skipping 500")
    assert not out.exists()


def test_groups_and_scores_belong_together(arena: Arena, groups: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(sprl(*arena.train(out, "--groups", groups)), EXIT_USAGE, "--groups and --scores belong together")
    refused(sprl(*arena.train(out, "--scores", groups)), EXIT_USAGE, "--groups and --scores belong together")
    refused(sprl(*arena.train(out, "--groups", groups, "--scores", groups)), EXIT_INPUT, "scores")
    assert not out.exists()


@pytest.mark.parametrize("judge", ["student", "no_such_package:Judge", "plain"])
def test_judges_that_are_not_there(arena: Arena, groups: Path, tmp_path: Path, judge: str) -> None:
    """Nothing is begun: the same command with another judge then simply works."""
    out = tmp_path / "out"
    refused(sprl(*arena.train(out, "--judge", judge)), EXIT_USAGE, judge.partition(":")[0])
    refused(sprl("score", groups, "--judge", judge, "--out", out), EXIT_USAGE, judge.partition(":")[0])
    assert not out.exists()


def test_a_paid_judge_without_its_key(arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is sampled: the rollout would be for nothing."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    out = tmp_path / "out"
    refused(sprl(*arena.train(out, "--judge", "openai")), EXIT_USAGE, "OPENAI_API_KEY")
    assert not out.exists()


@pytest.mark.parametrize("arguments", [["--version"], ["train-rm"], ["train-nft", "--help"], ["nothing"]])
def test_the_module_is_the_command(arguments: list[str]) -> None:
    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        env = {**environment(), "COLUMNS": "100"}
        return subprocess.run([*command, *arguments], env=env, capture_output=True, text=True, check=False, cwd=ROOT)

    script = Path(sys.executable).parent / "sprl"
    # Not installed: what the console script would call.
    target = [sys.executable, "-c", "from stateplay_rl.cli.main import entry; entry()"]
    module = run([sys.executable, "-m", "stateplay_rl"])
    installed = run([str(script)] if script.is_file() else target)
    assert (module.returncode, module.stdout, module.stderr) == (
        installed.returncode,
        installed.stdout,
        installed.stderr,
    )
