"""Examples parse with their schemas, the documented judge works, and the documents' links lead somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file

from stateplay_rl.config.base import FrozenConfig, load_config
from stateplay_rl.config.train_nft import TrainNftConfig
from stateplay_rl.config.train_rm import TrainRmConfig
from stateplay_rl.config.world import WorldConfig
from stateplay_rl.judges.base import Judge, checked
from stateplay_rl.judges.plugin import load_plugin
from stateplay_rl.stores.groups import GroupRecord, GroupStore, StoredGroup
from stateplay_rl.worlds.world_files import all_files, arena_world, resolve_world

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
SCHEMAS: dict[str, type[FrozenConfig]] = {
    "configs": TrainNftConfig,
    "student": TrainRmConfig,
    "three_stage": TrainNftConfig,
    "worlds": WorldConfig,
}
LAUNCHES = sorted((EXAMPLES / "accelerate").glob("*.yaml"))
RESULTS = {file for file in EXAMPLES.rglob("*.yaml") if file.parent.name == "results"}
YAML_FILES = sorted({*EXAMPLES.rglob("*.yaml"), *EXAMPLES.rglob("*.yml")} - set(LAUNCHES) - RESULTS)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *EXAMPLES.rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def broken_links(document: Path) -> list[str]:
    """Relative links whose target does not exist; code blocks hold none."""
    text = CODE_BLOCK.sub("", document.read_text(encoding="utf-8"))
    paths = [link.partition("#")[0] for link in LINK.findall(text) if "://" not in link]
    return [path for path in paths if path and not (document.parent / path).exists()]


def test_there_is_something_to_check() -> None:
    assert {file.parent.name for file in YAML_FILES} == set(SCHEMAS)
    assert {"README.md", "CHANGELOG.md", "docs/commands.md"} <= {short(document) for document in DOCUMENTS}


@pytest.mark.parametrize("file", YAML_FILES, ids=short)
def test_every_example_parses_with_its_schema(file: Path) -> None:
    schema = SCHEMAS[file.parent.name]
    if file.name.startswith("rm_"):
        schema = TrainRmConfig
    load_config(schema, file)


@pytest.mark.parametrize("file", LAUNCHES, ids=short)
def test_every_launch_file_is_accelerates_own(file: Path) -> None:
    config = load_config_from_file(str(file))
    assert config.num_processes > 1
    assert config.mixed_precision == "no"
    assert getattr(config, "fsdp_config", None) in (None, {}) or config.fsdp_config["fsdp_version"] == 2


def test_the_arena_config_fits_what_the_demo_makes() -> None:
    config = load_config(TrainNftConfig, EXAMPLES / "configs" / "arena.yaml")
    assert isinstance(config, TrainNftConfig)
    assert config.world == "arena"
    assert config.judge.name == "referee"
    assert config.stage_conditions % config.conditions_per_batch == 0


def test_the_world_file_names_the_packaged_files_and_runs_them_alike() -> None:
    packaged = arena_world()
    found = resolve_world(str(EXAMPLES / "worlds" / "arena.yaml"))
    assert [file.resolve() for file in all_files(found.files)] == [file.resolve() for file in all_files(packaged.files)]
    same = {"name", "files"}
    assert found.model_dump(exclude=same) == packaged.model_dump(exclude=same)


@pytest.mark.parametrize("document", DOCUMENTS, ids=short)
def test_every_relative_link_leads_to_a_file(document: Path) -> None:
    assert broken_links(document) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").touch()
    document = tmp_path / "page.md"
    document.write_text(
        "[a](there.md#part) [b](gone.md) ![c](gone.png) [d](https://example.org) [e](#here)\n```\n[f](no.md)\n```\n"
    )
    assert broken_links(document) == ["gone.md", "gone.png"]


def plug_in_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: float) -> Judge:
    """The judge of docs/plug-ins.md, loaded as a user would load it."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "plug-ins.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    (tmp_path / "documented_judges.py").write_text(code.group(1), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "documented_judges", raising=False)
    return load_plugin("documented_judges:ClosenessJudge", options)


def written_group(root: Path, videos: list[np.ndarray], reference: np.ndarray | None) -> StoredGroup:
    record = GroupRecord(
        group_id="g0",
        condition_id="c0",
        batch=0,
        policy_sha256="0" * 64,
        world_sha256="1" * 64,
        sampler="euler",
        sampling_steps=2,
        seeds=tuple(range(len(videos))),
        prompt="walks forward",
        fps=20.0,
        frames=5,
        latent_frames=2,
        buttons=((0,) * 11,) * 5,
        action_bin_edges=((0, 3), (3, 5)),
        mechanics_class="normal",
    )
    latents = [torch.zeros(1, 2, 1, 1, dtype=torch.bfloat16) for _ in videos]
    return GroupStore(root).write(record, videos[0][0], latents, videos, reference)


def test_the_documented_judge_works_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dark, light = np.full((5, 16, 16, 3), 60, np.uint8), np.full((5, 16, 16, 3), 80, np.uint8)
    judge = plug_in_judge(tmp_path, monkeypatch, levels_at_zero=40.0)
    verdict = checked(judge.score_group(written_group(tmp_path / "a", [dark, light], dark)), 2)
    assert verdict.status == "scored"
    assert verdict.scores[0] == 100.0
    assert verdict.scores[1] == pytest.approx(50.0, abs=5.0)
    blind = checked(judge.score_group(written_group(tmp_path / "b", [dark, light], None)), 2)
    assert blind.status == "failed"
    assert blind.scores == (None, None)
    assert blind.reason is not None
    assert blind.reason.startswith("no_reference")


def test_the_documented_judge_names_its_settings_in_its_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = plug_in_judge(tmp_path, monkeypatch, levels_at_zero=40.0)
    other = plug_in_judge(tmp_path, monkeypatch, levels_at_zero=30.0)
    assert first.protocol_sha256 != other.protocol_sha256
