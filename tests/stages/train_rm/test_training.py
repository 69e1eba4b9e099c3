"""Training: exact answers on a few groups, exact resume, candidates that move take their scores along."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stateplay_rl.errors import CheckError
from stateplay_rl.reward_model import lora
from stateplay_rl.stages.train_rm.training import Schedule
from tests.reward_model.small_groups import SmallExamples
from tests.stages.train_rm.learning import Bench, make_setting

EIGHT = ["train"] * 8 + ["validation"]


@pytest.fixture(scope="module")
def overfitted(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Eight groups, trained until they are known by heart: four sets of candidates, each in two orders."""
    out = tmp_path_factory.mktemp("overfit")
    setting = make_setting(small_folder, out, epochs=80, learning_rate=1e-2)
    bench = Bench(setting, SmallExamples(EIGHT, paired=True))
    bench.trainer.run()
    # Not the best epoch on validation: this is about memory.
    lora.load_state(bench.student.model, bench.checkpoints.load().payload.live)
    return bench


def test_eight_groups_are_learnt_to_the_exact_answers(overfitted: Bench) -> None:
    for example in overfitted.examples.of_split("train"):
        payload = overfitted.examples.payload(example)
        answer = overfitted.student.score(payload, "greedy")
        assert answer.scores is not None, answer.text
        assert payload.by_candidate(answer.scores) == example.raw_scores


def test_shuffled_labels_permute_the_scores(overfitted: Bench) -> None:
    """The same candidates under other letters: other answers, the same score for each candidate."""
    groups = overfitted.examples.of_split("train")
    for first, second in zip(groups[::2], groups[1::2], strict=True):
        one, two = (overfitted.examples.payload(example) for example in (first, second))
        assert one.order != two.order
        a, b = (overfitted.student.score(payload, "greedy").scores for payload in (one, two))
        assert a is not None
        assert b is not None
        assert one.by_candidate(a) == two.by_candidate(b)
        assert tuple(a[one.order.index(candidate)] for candidate in two.order) == b


def test_another_order_in_every_epoch_comes_with_its_targets(small_folder: Path, tmp_path: Path) -> None:
    options = {"epochs": 3, "groups_per_step": 4, "shuffle_labels": True}
    bench = Bench(
        make_setting(small_folder, tmp_path / "out", **options), SmallExamples(["train"] * 2 + ["validation"])
    )
    bench.trainer.run()
    shown = [order for name, order in bench.examples.calls if name == "group0"]
    assert len(shown) == 3
    assert len(set(shown)) > 1
    group = bench.trainer._input(bench.examples.items[0], 1)
    order = bench.examples.calls[-1][1]
    form = bench.student.reader.form(("A", "B", "C", "D"))
    targets = bench.examples.items[0].targets
    assert group.ids[-group.answer_tokens :] == form.tokens([targets[k] for k in order])


def test_the_expected_reading_agrees_with_what_is_known_by_heart(overfitted: Bench) -> None:
    example = overfitted.examples.of_split("train")[0]
    answer = overfitted.student.score(overfitted.examples.payload(example), "expected")
    assert answer.scores is not None
    assert answer.legal_mass is not None
    assert answer.legal_mass > 0.9
    given = overfitted.examples.payload(example).by_candidate(answer.scores)
    assert max(abs(a - b) for a, b in zip(given, example.raw_scores, strict=True)) < 10.0


def adapter(bench: Bench) -> dict[str, torch.Tensor]:
    return bench.checkpoints.load().payload.live


def test_a_killed_and_resumed_training_equals_an_uninterrupted_one(small_folder: Path, tmp_path: Path) -> None:
    """Dropout on, two epochs, killed inside the first: every bit of adapter, log and best epoch is the same."""
    splits = ["train"] * 4 + ["validation"] * 2
    options = {"epochs": 2, "groups_per_step": 2, "learning_rate": 1e-2, "dropout": 0.2, "shuffle_labels": True}
    whole = Bench(make_setting(small_folder, tmp_path / "whole", **options), SmallExamples(splits))
    best = whole.trainer.run()
    killed = Bench(make_setting(small_folder, tmp_path / "killed", **options), SmallExamples(splits))
    # Work past the checkpoint that the kill throws away: a line in the log, other random draws.
    killed.trainer._step(0)
    killed.trainer._save(1)
    killed.trainer._step(1)
    torch.rand(7)
    resumed = Bench(make_setting(small_folder, tmp_path / "killed", **options), SmallExamples(splits))
    again = resumed.trainer.run()
    assert (again.epoch, again.loss) == (best.epoch, best.loss)
    assert whole.log.path.read_bytes() == resumed.log.path.read_bytes()
    first, second = adapter(whole), adapter(resumed)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], torch.zeros_like(first[name])) for name in first if ".lora_B." in name)


def test_the_best_epoch_on_validation_is_in_the_model_at_the_end(small_folder: Path, tmp_path: Path) -> None:
    options = {"epochs": 3, "groups_per_step": 2, "learning_rate": 5e-2, "schedule": "constant"}
    bench = Bench(
        make_setting(small_folder, tmp_path / "out", **options), SmallExamples(["train"] * 2 + ["validation"])
    )
    best = bench.trainer.run()
    losses = [line["validation_loss"] for line in bench.log.read() if "validation_loss" in line]
    assert len(losses) == 3
    assert best.epoch == losses.index(min(losses)) + 1
    assert best.adapter is not None
    now = lora.adapter_state(bench.student.model)
    assert all(torch.equal(now[name], best.adapter[name]) for name in now)
    assert bench.trainer._validation_loss() == min(losses)


def test_a_loss_that_is_not_finite_stops_with_a_message(small_folder: Path, tmp_path: Path) -> None:
    bench = Bench(make_setting(small_folder, tmp_path / "out", epochs=1), SmallExamples(["train", "validation"]))
    with torch.no_grad():
        next(iter(lora.trained_parameters(bench.student.model).values())).fill_(float("nan"))
    with pytest.raises(CheckError, match="not finite"):
        bench.trainer.run()


def test_every_group_comes_once_an_epoch_in_another_order() -> None:
    groups = SmallExamples(["train"] * 7).of_split("train")
    schedule = Schedule(groups, groups_per_step=3, epochs=2, seed=5)
    assert (schedule.steps_per_epoch, schedule.steps) == (3, 6)
    epochs = [[e.group_id for step in range(3 * n, 3 * n + 3) for e in schedule.at(step)[1]] for n in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(g.group_id for g in groups)
    assert epochs[0] != epochs[1]
    assert [len(schedule.at(step)[1]) for step in range(3)] == [3, 3, 1]
