"""`verify signal` on groups that a tiny world rolled out, with scores that do or do not hold a direction."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from stateplay_rl.cli import main as cli_main
from stateplay_rl.config.rollout import RolloutConfig, SamplingConfig
from stateplay_rl.config.verify import SignalConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import EXIT_CHECK, CorruptionError, InputError, UsageError
from stateplay_rl.nft.signal import ALIKE_BELOW_POINTS, BOTH_MODES_SHARE, CLEAR_COSINE, gradient_cosine
from stateplay_rl.stages import signal_lines, verify_signal
from stateplay_rl.stages.candidates import RolloutPlan, policy_sha256, roll_out_group
from stateplay_rl.stages.group_gradients import NO_ANCHORS, GroupData, group_gram
from stateplay_rl.stages.scored_groups import read_scored_groups
from stateplay_rl.stages.train_nft.gradients import global_gradient
from stateplay_rl.stages.train_nft.objective import Objective
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import (
    ConditionRecord,
    ConditionStore,
    hash_actions,
    write_condition_files,
    write_conditions,
)
from stateplay_rl.stores.groups import GroupRow, GroupStore, write_groups_parquet
from stateplay_rl.stores.hashing import hash_frames
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.ledger import Ledger
from stateplay_rl.stores.manifest import OutputDirectory, read_manifest
from stateplay_rl.stores.scores import ScoreRow, ScoreTable
from stateplay_rl.stores.segments import open_segment
from stateplay_rl.worlds.preparation import action_bin_edges
from tests.worlds.tiny import FRAMES, SLOTS, tiny_inputs, tiny_world

CONDITIONS, CANDIDATES = 10, 4
MODE = "transition"
SAMPLING = SamplingConfig(candidates=CANDIDATES, steps=3)


def opened(path, schema, config, inputs=None):
    return OutputDirectory.open(
        path,
        schema=schema,
        version=layout.SCHEMAS[schema],
        command="test",
        config=config,
        inputs=inputs or {},
        resume=False,
        overwrite=False,
    )


def write_tiny_conditions(path):
    """Ten conditions that differ in their ids only, so that what helps one helps all."""
    inputs = tiny_inputs(1)[0]
    raw_RK = inputs.held_actions_RK.astype(np.int32)
    with opened(path, "conditions", RolloutConfig()) as out:
        records = []
        for order in range(CONDITIONS):
            name = f"c{order}"
            write_condition_files(out, name, inputs.first_frame_hwc, raw_RK, raw_RK, {})
            records.append(
                ConditionRecord(
                    condition_id=name,
                    clip=None,
                    prompt=inputs.prompt,
                    mechanics_class="normal",
                    distribution="normal",
                    npc_category="",
                    strategy="",
                    fps=20.0,
                    frames=FRAMES,
                    latent_frames=SLOTS,
                    action_rows=len(raw_RK),
                    action_bin_edges=action_bin_edges(len(raw_RK), SLOTS),
                    first_frame_sha256=hash_frames(inputs.first_frame_hwc),
                    actions_sha256=hash_actions(raw_RK),
                    cluster_id=order,
                    pool="pass",
                    student_split="train",
                    order=order,
                    warnings=(),
                )
            )
        write_conditions(out, records)
        out.seal()
    return ConditionStore.open(path)


def roll_out(root, conditions, world, batch=0, first=0):
    plan = RolloutPlan(0, batch, SAMPLING, "live", policy_sha256(world, "live"), world.sha256)
    store = GroupStore(root)
    records = conditions.records[first:]
    return [store.read(roll_out_group(world, conditions, record, plan, store)) for record in records]


def write_groups(path, conditions, world):
    config = RolloutConfig(mode=MODE, sampling=SAMPLING)
    with opened(path, "groups", config, {"conditions": conditions.root}) as out:
        groups = roll_out(out.path, conditions, world)
        write_groups_parquet(out.path / layout.GROUPS, [GroupRow.of(group) for group in groups])
        out.seal()
    return SimpleNamespace(groups=path, conditions=conditions, stored=groups)


def base_world():
    world = tiny_world()
    world.set_mode(MODE)
    return world


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """conditions/ and groups/ of the tiny world's base policy; each test writes scores of its own."""
    root = tmp_path_factory.mktemp("signal")
    return write_groups(root / "groups", write_tiny_conditions(root / "conditions"), base_world())


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    """`--world` names the tiny world: each call loads a fresh one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_RUN_ROOT", raising=False)
    monkeypatch.setattr(verify_signal, "resolve_world", lambda name: SimpleNamespace(files=name))
    monkeypatch.setattr(verify_signal, "all_files", lambda files: ())
    monkeypatch.setattr(verify_signal, "load_world", lambda config: tiny_world())


def directed(group):
    """The two candidates of the larger mean latent are good: the same direction for every condition."""
    means = [float(group.latents(k)[:, 1:].float().mean()) for k in range(CANDIDATES)]
    median = sorted(means)[CANDIDATES // 2]
    return [95.0 if mean >= median else 5.0 for mean in means]


def alike(group):
    return [60.0, 62.0, 60.0, 62.0]


def score_rows(chain, score, judge="judge", failed=()):
    return [
        ScoreRow(
            group.record.group_id,
            k,
            None if number in failed else value,
            "failed" if number in failed else "scored",
            "timeout" if number in failed else None,
            judge,
            "c" * 64,
            None,
        )
        for number, group in enumerate(chain.stored)
        for k, value in enumerate(score(group))
    ]


def write_scores(path, chain, score, **changes):
    rows = score_rows(chain, score, **changes)
    with opened(path, "scores", RolloutConfig(), {"groups": chain.groups}) as out:
        ScoreTable(rows).write(out.path / layout.SCORES)
        out.seal(extra={"group_sha256": GroupStore(chain.groups).hashes()})
    return path


def config_of(chain, scores, **changes):
    return SignalConfig(groups=chain.groups, scores=scores, mode=MODE, **changes)


def by_name(summary):
    return {line.name: line for line in summary.lines}


def measures(path):
    return json.loads((path / layout.VERIFY).read_text())["measures"]


def test_a_common_direction_passes(chain, tmp_path):
    scores = write_scores(tmp_path / "scores", chain, directed)
    summary = verify_signal.run(config_of(chain, scores), tmp_path / "record")
    lines = by_name(summary)
    assert [line.status for line in summary.lines] == ["passed", "passed", "passed", "skipped"]
    assert "45.0 points" in lines["within-group deviation"].detail
    assert "no probe of judge judge" in lines["judge noise"].detail
    assert "halves of 5 groups, 20 candidates" in lines["gradient cosine"].detail
    assert "here are fewer" in lines["gradient cosine"].detail
    assert summary.passed
    assert "conditions per batch" in summary.words[2]
    found = measures(tmp_path / "record")
    assert found["spread"]["share_both_modes"] == 1.0
    assert found["cosine"]["units_per_half"] == 5
    assert found["conditions_asked_for"] >= 1
    manifest = read_manifest(tmp_path / "record")
    assert set(manifest.inputs) == {"groups", "scores", "conditions"}
    assert len(manifest.extra["group_sha256"]) == CONDITIONS


def test_the_noise_of_a_probed_judge_is_subtracted(chain, tmp_path):
    """Of 45 points of deviation 8 are the judge's: what is left is still far above 10."""
    scores = write_scores(tmp_path / "scores", chain, directed)
    with opened(tmp_path / "probe", "probe", RolloutConfig()) as out:
        value = {"judge_id": "judge", "protocol_sha256": "c" * 64, "within": {"value": 8.0}}
        out.write_json(layout.PROBE, value)
        out.seal()
    summary = verify_signal.run(config_of(chain, scores, probe=tmp_path / "probe"), tmp_path / "record")
    assert by_name(summary)["judge noise"].status == "passed"
    assert "44.5 are left" in by_name(summary)["judge noise"].detail
    assert measures(tmp_path / "record")["judge_noise"] == 8.0


def test_alike_candidates_fail_and_say_what_to_expect(chain, tmp_path, capsys):
    scores = write_scores(tmp_path / "scores", chain, alike)
    arguments = ["verify", "signal", str(chain.groups), "--scores", str(scores), "--set", f"mode={MODE}"]
    assert cli_main.main([*arguments, "--out", str(tmp_path / "record")]) == EXIT_CHECK
    printed = capsys.readouterr()
    assert "1.0 points, at least 10 asked for" in printed.out
    assert "expect the trained conditions to be memorised" in printed.out
    assert "within-group deviation, both modes" in printed.err
    assert read_manifest(tmp_path / "record").extra["passed"] is False


def test_tied_groups_have_no_gradient_to_compare(chain, tmp_path):
    """All tied: not measured. Two that are not: one in each half."""
    tied = write_scores(tmp_path / "tied", chain, lambda group: [50.0] * 4)
    lines = by_name(verify_signal.run(config_of(chain, tied), tmp_path / "a"))
    assert lines["gradient cosine"].status == "failed"
    assert "0 of 10 groups are neither tied nor gated" in lines["gradient cosine"].detail
    few = {group.record.group_id for group in chain.stored[:2]}
    mixed = write_scores(tmp_path / "mixed", chain, lambda g: directed(g) if g.record.group_id in few else [50.0] * 4)
    verify_signal.run(config_of(chain, mixed), tmp_path / "b")
    found = measures(tmp_path / "b")
    assert (found["training_groups"], found["cosine"]["units_per_half"]) == (2, 1)
    assert found["spread"]["share_tied"] == 0.8


def test_scores_without_a_common_direction_agree_less(chain, tmp_path):
    """The same scores, but every second group prefers the opposite: halves no longer agree."""
    flipped = {group.record.group_id for group in chain.stored[::2]}

    def opposed(group):
        scores = directed(group)
        return [100.0 - s for s in scores] if group.record.group_id in flipped else scores

    scores = write_scores(tmp_path / "scores", chain, opposed)
    summary = verify_signal.run(config_of(chain, scores), tmp_path / "record")
    assert by_name(summary)["gradient cosine"].status == "failed"
    assert by_name(summary)["both modes"].status == "passed"
    assert measures(tmp_path / "record")["cosine"]["mean"] < 0.1


def test_failed_judgements_are_left_out_and_counted(chain, tmp_path):
    scores = write_scores(tmp_path / "scores", chain, directed, failed=(0, 3))
    summary = verify_signal.run(config_of(chain, scores, limit=6), tmp_path / "record")
    assert measures(tmp_path / "record")["spread"]["groups"] == 6
    assert "6 of 8 judged groups were used" in summary.words[-2]
    assert "2 groups have no full judgement" in summary.words[-1]


def test_settings_of_the_calls_do_not_change_the_result(chain, tmp_path):
    scores = write_scores(tmp_path / "scores", chain, directed)
    for name, size in (("one", 1), ("four", 4)):
        verify_signal.run(config_of(chain, scores, samples_per_call=size), tmp_path / name)
    one, four = (measures(tmp_path / name)["cosine"]["mean"] for name in ("one", "four"))
    assert one == pytest.approx(four, abs=1e-4)


def moved_policy(tmp_path):
    """A policy that training would export, and the world that holds it."""
    world = base_world()
    generator = torch.Generator().manual_seed(1)
    state = {
        name: value + 0.01 * torch.randn(value.shape, generator=generator)
        for name, value in world.policies.state("live").items()
    }
    world.policies.load("live", state)
    save_file(world.export_policy("live"), tmp_path / "policy.safetensors")
    return world, tmp_path / "policy.safetensors"


def test_only_the_policy_that_sampled_the_groups_is_measured(chain, tmp_path):
    world, policy = moved_policy(tmp_path)
    scores = write_scores(tmp_path / "scores", chain, directed)
    with pytest.raises(InputError, match="the groups were sampled by"):
        verify_signal.run(config_of(chain, scores, policy=policy), tmp_path / "record")
    assert not (tmp_path / "record").exists()
    later = write_groups(tmp_path / "later", chain.conditions, world)
    scores = write_scores(tmp_path / "later_scores", later, directed)
    with pytest.raises(InputError, match="the loaded policy is"):
        verify_signal.run(config_of(later, scores), tmp_path / "record")
    summary = verify_signal.run(config_of(later, scores, policy=policy), tmp_path / "record")
    assert by_name(summary)["within-group deviation"].status == "passed"
    assert "policy" in read_manifest(tmp_path / "record").inputs


def test_another_world_is_refused(chain, tmp_path, monkeypatch):
    monkeypatch.setattr(verify_signal, "load_world", lambda config: tiny_world(seed=5))
    scores = write_scores(tmp_path / "scores", chain, directed)
    with pytest.raises(InputError, match="give the world that rolled the groups out"):
        verify_signal.run(config_of(chain, scores), tmp_path / "record")


def write_run(root, chain, *, seal, later_judge="judge"):
    """A run of two batches: one of the base policy, one of a moved policy."""
    world, _ = moved_policy(root)
    config = RolloutConfig(mode=MODE, sampling=SAMPLING)
    reads = {"conditions": chain.conditions.root}
    run = opened(root / "run", "run", config, reads)
    Ledger.create(run.path / layout.LEDGER, [r.condition_id for r in chain.conditions.records]).close()
    segment = open_segment(run, "a", config=config, inputs=reads)
    folder = segment.path / layout.GROUPS_FOLDER
    stored = roll_out(folder, chain.conditions, base_world())
    stored += roll_out(folder, chain.conditions, world, batch=1, first=8)
    batches = SimpleNamespace(stored=stored)
    if seal:
        ScoreTable(score_rows(batches, directed)).write(segment.path / layout.SCORES)
        segment.seal()
        run.seal()
        return run.path
    log = LineLog(segment.path / layout.VERDICTS)
    for place, group in enumerate(stored[:-1]):
        judge_id = "judge" if place < CONDITIONS else later_judge
        line = {"group_id": group.record.group_id, "judge_id": judge_id, "protocol_sha256": "c" * 64}
        log.append({**line, "status": "scored", "scores": directed(group)})
    segment.close()
    run.close()
    return run.path


@pytest.mark.parametrize("seal", [True, False])
def test_a_run_brings_its_own_scores(chain, tmp_path, seal):
    """Sealed: the table. Open: the log, in which the last group is not judged yet."""
    run = write_run(tmp_path, chain, seal=seal)
    summary = verify_signal.run(SignalConfig(groups=run, mode=MODE), tmp_path / "record")
    found = measures(tmp_path / "record")
    assert found["spread"]["groups"] == CONDITIONS
    judged = CONDITIONS + (2 if seal else 1)
    assert f"{CONDITIONS} of {judged} judged groups were used" in " ".join(summary.words)
    assert any("no full judgement" in sentence for sentence in summary.words) is not seal
    # The same groups, seeds and scores as the pair of directories: the same numbers.
    scores = write_scores(tmp_path / "scores", chain, directed)
    verify_signal.run(config_of(chain, scores), tmp_path / "pair")
    assert measures(tmp_path / "pair") == found


def test_groups_without_scores_or_with_two_judges_are_refused(chain, tmp_path):
    with pytest.raises(UsageError, match="holds no scores"):
        verify_signal.run(config_of(chain, None), tmp_path / "record")
    nothing = write_scores(tmp_path / "nothing", chain, directed, failed=range(CONDITIONS))
    with pytest.raises(InputError, match="not one of the 10 groups"):
        verify_signal.run(config_of(chain, nothing), tmp_path / "record")
    rows = score_rows(chain, directed)
    others = [replace(row, judge_id="other") for row in rows[:CANDIDATES]]
    with opened(tmp_path / "two", "scores", RolloutConfig()) as out:
        ScoreTable([*others, *rows[CANDIDATES:]]).write(out.path / layout.SCORES)
        out.seal()
    with pytest.raises(InputError, match="2 judges"):
        verify_signal.run(config_of(chain, tmp_path / "two"), tmp_path / "record")
    assert not (tmp_path / "record").exists()


def test_a_run_whose_stages_had_different_judges(chain, tmp_path):
    """The later policy's groups were judged by another one: they are not this policy's, so nothing is mixed."""
    run = write_run(tmp_path, chain, seal=False, later_judge="student")
    summary = verify_signal.run(SignalConfig(groups=run, mode=MODE), tmp_path / "record")
    assert f"{CONDITIONS} of {CONDITIONS + 1} judged groups were used" in " ".join(summary.words)


def test_groups_that_changed_since_they_were_scored_are_refused(chain, tmp_path):
    scores = write_scores(tmp_path / "scores", chain, directed)
    copy = tmp_path / "copy"
    shutil.copytree(chain.groups, copy)
    file = copy / chain.stored[0].record.group_id / layout.GROUP
    file.write_text(file.read_text() + " ")
    with pytest.raises(CorruptionError, match="has changed"):
        verify_signal.run(
            SignalConfig(groups=copy, scores=scores, conditions=chain.conditions.root, mode=MODE),
            tmp_path / "record",
        )


@pytest.mark.parametrize("draws", [1, 3])
def test_the_gram_matrix_is_that_of_the_groups_gradients(draws, chain, tmp_path):
    """Groups are of equal size, so their mean gradient is the whole batch's: |g|^2 = sum(Gram) / N^2."""
    world = tiny_world()
    parameters = [p for group in world.set_mode(MODE) for p in group.parameters]
    found = read_scored_groups(chain.groups, write_scores(tmp_path / "s", chain, directed), None)
    config = verify_signal._training_config(config_of(chain, None), found.sampling)
    data = GroupData(world, chain.conditions, found.source)
    objective = Objective(world, config, data.conditions_of, data.latents_of, data.real_of)
    units = verify_signal._samples_by_group(found.groups, config)
    one = Processes(0, 1, torch.device("cpu"))
    gram_NN = group_gram(objective, units, parameters, one, draws=draws)
    samples = [sample for unit in units for sample in unit]
    visits = [replace(NO_ANCHORS, inner_pass=draw) for draw in range(draws)]
    whole = sum(global_gradient(objective, samples, visit, parameters, one).flat().double() for visit in visits)
    assert float(gram_NN.sum()) / len(units) ** 2 == pytest.approx(float(whole.square().sum()), rel=1e-4)
    assert gradient_cosine(gram_NN, splits=4).units_per_half == len(units) // 2


def test_the_thresholds_are_those_of_the_go_no_go():
    assert (ALIKE_BELOW_POINTS, BOTH_MODES_SHARE, CLEAR_COSINE) == (10.0, 0.5, 0.2)
    assert signal_lines.GO_CANDIDATES == 96


def test_groups_of_another_sampler_than_their_directorys_are_refused(chain, tmp_path):
    """One group was sampled by another rule: its record differs from what its directory says of all."""
    copy = tmp_path / "copy"
    shutil.copytree(chain.groups, copy)
    store, record = GroupStore(copy), chain.conditions.records[0]
    sampling = SAMPLING.model_copy(update={"solver": "dpm2m"})
    world = base_world()
    plan = RolloutPlan(0, 0, sampling, "live", policy_sha256(world, "live"), world.sha256)
    stranger = store.read(roll_out_group(world, chain.conditions, record, plan, store))
    mixed = SimpleNamespace(groups=copy, conditions=chain.conditions, stored=[stranger, *chain.stored[1:]])
    scores = write_scores(tmp_path / "scores", mixed, directed)
    with pytest.raises(CorruptionError, match="has 4 candidates of 3 dpm2m steps, its directory records"):
        read_scored_groups(copy, scores, chain.conditions.root)
