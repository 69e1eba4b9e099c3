"""`verify dir`: a whole chain passes; each planted fault is found where it is."""

from __future__ import annotations

import json
import shutil
import sqlite3

import pytest
from safetensors.torch import load_file, save_file

from stateplay_rl.checks.directory import run_directory
from stateplay_rl.errors import InputError
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.stores.checkpoints import CheckpointStore
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.scores import ScoreTable
from stateplay_rl.worlds.policy_bank import sha256_tensors
from stateplay_rl.worlds.preparation import action_bin_edges
from tests.checks.directories import (
    score_rows,
    write_chain,
    write_conditions_folder,
    write_group,
    write_hand_made_run,
    write_run,
    writing,
)


def outcome(path, *search):
    return {line.name: line for line in run_directory(path, search)}


def failed(path, *search):
    return {name for name, line in outcome(path, *search).items() if line.status == "failed"}


def statuses(path, *search):
    return {line.status for line in run_directory(path, search)}


def reseal(path):
    """Make the manifest agree with the files again: what is left wrong is inside the records."""
    file = path / layout.MANIFEST
    manifest = json.loads(file.read_text())
    for name, ref in manifest["files"].items():
        ref.update(size=(path / name).stat().st_size, sha256=sha256_file(path / name))
    file.write_text(json.dumps(manifest))


def test_a_whole_chain_passes(tmp_path):
    lines = outcome(write_chain(tmp_path))
    assert {line.status for line in lines.values()} == {"passed"}, lines
    assert list(lines) == [
        "scores: manifest",
        "scores: files",
        "scores: input 'groups'",
        "scores <- groups: manifest",
        "scores <- groups: files",
        "scores <- groups: input 'conditions'",
        "scores <- groups <- conditions: manifest",
        "scores <- groups <- conditions: files",
        "scores <- groups <- conditions: conditions",
        "scores <- groups: groups",
        "scores <- groups: index",
        "scores: scores",
    ]


def test_one_flipped_byte_far_up_the_chain_is_found(tmp_path):
    scores = write_chain(tmp_path)
    frame = tmp_path / "conditions" / layout.frame_file("c1")
    frame.write_bytes(frame.read_bytes()[:-1] + b"\x00")
    lines = outcome(scores)
    assert {n for n, line in lines.items() if line.status == "failed"} == {
        "scores <- groups <- conditions: files",
        "scores <- groups <- conditions: conditions",
    }
    assert "frames/c1.png" in lines["scores <- groups <- conditions: files"].detail


def test_a_missing_file_is_named(tmp_path):
    scores = write_chain(tmp_path)
    (tmp_path / "groups" / "g-c0" / "candidate_1.mp4").unlink()
    lines = outcome(scores)
    assert "candidate_1.mp4 is missing" in lines["scores <- groups: files"].detail
    assert lines["scores <- groups: groups"].status == "failed"


def test_a_group_that_was_judged_differently_breaks_at_the_scores(tmp_path):
    """The groups directory agrees with itself, but it is not the one that was judged."""
    scores = write_chain(tmp_path)
    file = tmp_path / "groups" / "g-c0" / layout.GROUP
    file.write_text(file.read_text().replace("SF3 Game.", "SF3 Game!"))
    reseal(tmp_path / "groups")
    lines = outcome(scores)
    assert lines["scores: input 'groups'"].status == "failed"
    assert "no longer what was read" in lines["scores: input 'groups'"].detail
    index = outcome(tmp_path / "groups")
    assert {n for n, line in index.items() if line.status == "failed"} == {"groups: index"}


def test_a_changed_group_under_a_rewritten_lineage_is_found_by_the_scores(tmp_path):
    scores = write_chain(tmp_path)
    file = tmp_path / "groups" / "g-c0" / layout.GROUP
    file.write_text(file.read_text().replace("SF3 Game.", "SF3 Game!"))
    reseal(tmp_path / "groups")
    manifest = json.loads((scores / layout.MANIFEST).read_text())
    manifest["inputs"]["groups"]["sha256"] = sha256_file(tmp_path / "groups" / layout.MANIFEST)
    (scores / layout.MANIFEST).write_text(json.dumps(manifest))
    lines = outcome(scores)
    assert "is not the one that was judged" in lines["scores: scores"].detail


def test_swapped_latents_are_found_although_every_file_hash_is_mended(tmp_path):
    write_chain(tmp_path)
    folder = tmp_path / "groups" / "g-c0"
    tensors = load_file(folder / "candidate_0.safetensors")
    save_file({"latents": -tensors["latents"]}, folder / "candidate_0.safetensors")
    group = json.loads((folder / layout.GROUP).read_text())
    group["files"]["candidate_0.safetensors"] = sha256_file(folder / "candidate_0.safetensors")
    (folder / layout.GROUP).write_text(json.dumps(group))
    reseal(tmp_path / "groups")
    lines = outcome(tmp_path / "groups")
    assert "latents_sha256" in lines["groups: groups"].detail


def test_scores_without_their_group_are_found(tmp_path):
    scores = write_chain(tmp_path)
    ScoreTable(score_rows(["g-c0", "g-c1", "g-c7"])).write(scores / layout.SCORES)
    reseal(scores)
    lines = outcome(scores)
    assert {n for n, line in lines.items() if line.status == "failed"} == {"scores: scores"}
    assert "g-c7" in lines["scores: scores"].detail


def test_a_damaged_manifest_is_a_failed_line(tmp_path):
    scores = write_chain(tmp_path)
    (scores / layout.MANIFEST).write_text("{")
    assert failed(scores) == {"scores: manifest"}


def test_a_newer_schema_is_refused_by_name(tmp_path):
    scores = write_chain(tmp_path)
    manifest = json.loads((scores / layout.MANIFEST).read_text())
    manifest["schema"]["version"] = 99
    (scores / layout.MANIFEST).write_text(json.dumps(manifest))
    assert "version 99" in outcome(scores)["scores: manifest"].detail


def test_a_moved_tree_is_whole_and_a_moved_input_is_found_by_hash(tmp_path):
    write_chain(tmp_path / "one")
    shutil.move(tmp_path / "one", tmp_path / "two")
    assert statuses(tmp_path / "two" / "scores") == {"passed"}
    (tmp_path / "attic").mkdir()
    shutil.move(tmp_path / "two" / "groups", tmp_path / "attic" / "old-groups")
    lines = outcome(tmp_path / "two" / "scores")
    assert lines["scores: input 'groups'"].status == "skipped"
    assert "--search" in lines["scores: input 'groups'"].detail
    assert lines["scores: scores"].status == "skipped"
    found = outcome(tmp_path / "two" / "scores", tmp_path / "attic")
    assert "old-groups" in found["scores: input 'groups'"].detail
    # conditions/ is not where groups/ recorded it any more; searching its folder finds it.
    assert statuses(tmp_path / "two" / "scores", tmp_path / "attic", tmp_path / "two") == {"passed"}


def test_a_sealed_run_with_its_segment_passes(tmp_path):
    lines = outcome(write_run(tmp_path))
    assert {line.status for line in lines.values()} == {"passed"}, lines
    assert "run/segments/000-a: groups" in lines
    assert "neither exported nor kept" in lines["run: policies"].detail
    assert "2 checkpoints" in lines["run: checkpoints"].detail


def test_a_policy_is_found_in_its_checkpoint_or_among_the_exported(tmp_path):
    run = write_run(tmp_path, seal=False)
    old = CheckpointStore(run / layout.CHECKPOINTS_FOLDER).load(1).payload.old
    groups = run / "segments/000-a/groups"
    for condition, policy in (("c0", sha256_tensors(old)), ("c1", "d" * 64)):
        shutil.rmtree(groups / f"g-{condition}")
        write_group(groups, condition, policy)
    detail = outcome(run)["run: policies"].detail
    assert detail == "2 policies sampled the groups; 1 are exported, 1 in a checkpoint"


@pytest.mark.parametrize("seal", [True, False])
def test_the_groups_of_a_hand_made_batch_are_found_in_its_input(tmp_path, seal):
    run = write_hand_made_run(tmp_path / "tree", seal=seal)
    lines = outcome(run)
    assert {n for n, line in lines.items() if line.status == "failed"} == set()
    assert lines["run: ledger"].detail == "2 of 2 conditions drawn, every group found"
    assert lines["run: policies"].detail.startswith("1 policies sampled the groups")
    assert lines["run/segments/000-hand: scores"].detail == "4 scores lead to 2 groups"
    assert lines["run/segments/000-hand <- groups: groups"].status == "passed"


def test_groups_of_a_hand_made_batch_that_moved_are_found_by_hash_or_said_to_be_away(tmp_path):
    run = write_hand_made_run(tmp_path / "tree")
    (tmp_path / "attic").mkdir()
    shutil.move(tmp_path / "tree" / "groups", tmp_path / "attic" / "old-groups")
    away = outcome(run)
    assert {n for n, line in away.items() if line.status == "failed"} == set()
    for name in ("run: ledger", "run/segments/000-hand: scores"):
        assert away[name].status == "skipped"
    assert "2 of 2 drawn conditions: the groups that 000-hand read were not found" in away["run: ledger"].detail
    assert "--search" in away["run: policies"].detail
    found = outcome(run, tmp_path / "attic", tmp_path / "tree")
    assert {line.status for line in found.values()} == {"passed"}, found


def test_a_group_that_a_hand_made_batch_lost_is_missed(tmp_path):
    run = write_hand_made_run(tmp_path)
    shutil.rmtree(tmp_path / "groups" / "g-c1")
    lines = outcome(run)
    assert "condition c1 (rolled): group g-c1 is missing" in lines["run: ledger"].detail
    assert lines["run/segments/000-hand: scores"].status == "failed"


def test_an_open_run_is_verified_as_far_as_it_goes(tmp_path):
    run = write_run(tmp_path, seal=False)
    lines = outcome(run)
    assert {n for n, line in lines.items() if line.status == "skipped"} == {
        "run: manifest",
        "run/segments/000-a: manifest",
    }
    assert "--resume" in lines["run: manifest"].detail
    assert lines["run/segments/000-a: groups"].status == "passed"
    with (run / layout.METRICS).open("a") as file:
        file.write('{"batch": 1')  # being written right now
    assert failed(run) == set()


RUN_FAULTS = {
    "run: checkpoints": lambda run: (run / "checkpoints/step-1/old.safetensors").write_bytes(b"x" * 90),
    "run: logs": lambda run: (run / layout.METRICS).write_text('{"batch": 0\n{"batch": 1}\n'),
    "run: ledger": lambda run: shutil.rmtree(run / "segments/000-a/groups/g-c1"),
    "run/segments/000-a: groups": lambda run: (run / "segments/000-a/groups/g-c0/candidate_0.mp4").write_bytes(b"x"),
}


@pytest.mark.parametrize("name", RUN_FAULTS)
def test_a_fault_in_an_open_run_is_found_where_it_is(tmp_path, name):
    run = write_run(tmp_path, seal=False)
    RUN_FAULTS[name](run)
    # A group that is gone is missed by the ledger and by the segment's scores.
    also = {"run/segments/000-a: scores"} if name == "run: ledger" else set()
    assert failed(run) == {name} | also


def test_a_ledger_that_names_another_conditions_group_is_found(tmp_path):
    run = write_run(tmp_path, seal=False)
    with sqlite3.connect(run / layout.LEDGER) as database:
        database.execute("UPDATE conditions SET group_id = 'g-c1' WHERE condition_id = 'c0'")
    database.close()
    assert "is of another condition" in outcome(run)["run: ledger"].detail


def test_wrong_bin_edges_are_found(tmp_path, monkeypatch):
    path = write_conditions_folder(tmp_path / "conditions")
    monkeypatch.setattr(
        "stateplay_rl.worlds.preparation.action_bin_edges",
        lambda rows, bins: action_bin_edges(rows + 1, bins),
    )
    assert failed(path) == {"conditions: conditions"}


def test_an_audited_file_that_changed_is_found(tmp_path):
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"abc")
    facts = {"realpath": str(weights), "size": 3, "sha256": sha256_file(weights)}
    gone = {"realpath": str(tmp_path / "gone.bin"), "size": 3, "sha256": None}
    with writing(tmp_path / "audit-x", "audit") as out:
        out.write_json(layout.AUDIT, {"verdict": "passed", "files": [facts, gone]})
        out.seal()
    lines = outcome(tmp_path / "audit-x")
    assert lines["audit-x: weight files"].status == "passed"
    assert "1 not here" in lines["audit-x: weight files"].detail
    weights.write_bytes(b"abd")
    assert failed(tmp_path / "audit-x") == {"audit-x: weight files"}
    weights.write_bytes(b"abcd")
    assert "has 4 bytes" in outcome(tmp_path / "audit-x")["audit-x: weight files"].detail


@pytest.mark.parametrize("schema", sorted(layout.SCHEMAS.keys() - {"conditions"}))
def test_every_kind_of_directory_is_handled(tmp_path, schema):
    with writing(tmp_path / schema, schema) as out:
        out.write_text("notes.txt", "x")
        if schema == "segment":
            write_group(out.path / layout.GROUPS_FOLDER, "c0")
        out.seal()
    assert failed(tmp_path / schema) == set()
    (tmp_path / schema / "notes.txt").write_text("y")
    assert failed(tmp_path / schema) == {f"{schema}: files"}


@pytest.mark.parametrize("schema", sorted(layout.SCHEMAS))
def test_every_kind_may_be_unfinished_and_empty(tmp_path, schema):
    """Nothing is wrong with it, and nothing vouches for it either."""
    with writing(tmp_path / schema, schema):
        pass
    lines = outcome(tmp_path / schema)
    assert {n for n, line in lines.items() if line.status == "failed"} == set()
    assert lines[f"{schema}: manifest"].status == "skipped"


def test_the_inputs_of_an_unfinished_directory_are_verified(tmp_path):
    conditions = write_conditions_folder(tmp_path / "conditions")
    with writing(tmp_path / "groups", "groups", {"conditions": conditions}) as out:
        write_group(out.path, "c0")
    assert failed(tmp_path / "groups") == set()
    (conditions / layout.CONDITIONS).write_bytes(b"x")
    assert failed(tmp_path / "groups") == {
        "groups <- conditions: files",
        "groups <- conditions: conditions",
    }


def test_held_out_groups_of_a_run_are_re_hashed(tmp_path):
    run = write_run(tmp_path, seal=False)
    write_group(run / layout.heldout_folder(1, "live"), "c0")
    assert failed(run) == set()
    (run / layout.heldout_folder(1, "live") / "g-c0" / "candidate_0.mp4").unlink()
    assert failed(run) == {"run: held-out groups"}


def test_files_outside_the_manifest_are_named(tmp_path):
    scores = write_chain(tmp_path)
    (scores / "extra.txt").write_text("x")
    line = outcome(scores)["scores: files"]
    assert line.status == "passed"
    assert "not vouched for: extra.txt" in line.detail


def test_foreign_and_absent_paths_are_refused(tmp_path):
    with pytest.raises(InputError, match="sprl did not write it"):
        run_directory(tmp_path)
    with pytest.raises(InputError, match="not a directory"):
        run_directory(tmp_path / "absent")


def test_an_unfinished_group_folder_is_not_a_group(tmp_path):
    run = write_run(tmp_path, seal=False)
    (run / "segments/000-a/groups/g-half").mkdir()
    assert "g-half" not in GroupStore(run / "segments/000-a/groups").finished()
    assert failed(run) == set()
