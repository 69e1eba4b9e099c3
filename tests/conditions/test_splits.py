"""Pool, student splits, order and selection: balanced, by whole clusters, seeded."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateplay_rl.conditions.source import SourceRow
from stateplay_rl.conditions.splits import heldout_mask, interleaved_order, select_rows, student_splits
from stateplay_rl.config.conditions import Selection, SplitRules
from stateplay_rl.errors import UsageError

NAMES = ("normal", "macro_success", "macro_fail", "result_win", "result_lose")


def real_shape(count: int = 10_000) -> tuple[list[str], list[int]]:
    """The real data's class sizes (60 % normal, 10 % of each other) in clusters of 1 to 5."""
    random = np.random.default_rng(0)
    classes = random.permutation(["normal"] * (count * 6 // 10) + [n for n in NAMES[1:] for _ in range(count // 10)])
    clusters = np.repeat(np.arange(count), random.integers(1, 6, count))[:count]
    return classes.tolist(), random.permutation(clusters).tolist()


clips = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 12)), min_size=1, max_size=60)


def test_held_out_pool_of_the_real_shape_is_balanced() -> None:
    classes, clusters = real_shape()
    heldout = heldout_mask(classes, clusters, SplitRules())
    assert heldout.sum() == 200
    counts = Counter(np.asarray(classes)[heldout])
    assert all(abs(counts[name] - 40) <= 2 for name in NAMES)


@settings(max_examples=60, deadline=None)
@given(clips=clips, heldout=st.integers(0, 40), seed=st.integers(0, 5))
def test_clusters_stay_whole(clips: list[tuple[str, int]], heldout: int, seed: int) -> None:
    classes, clusters = [c for c, _ in clips], [k for _, k in clips]
    rules = SplitRules(heldout=heldout, seed=seed)
    mask = heldout_mask(classes, clusters, rules)
    splits = student_splits(classes, clusters, mask, rules)
    assert mask.sum() <= min(heldout, len(clips) // 2)
    for cluster in set(clusters):
        members = [i for i, k in enumerate(clusters) if k == cluster]
        assert len({bool(mask[i]) for i in members}) == 1
        assert len({splits[i] for i in members}) == 1
    assert all(splits[i] == "test" for i in np.flatnonzero(mask))


def test_no_class_vanishes_from_training() -> None:
    """6 of a rare class: at most 3 are held out, and the common class fills up to the number asked for."""
    classes = ["normal"] * 36 + [name for name in NAMES[1:] for _ in range(6)]
    mask = heldout_mask(classes, list(range(60)), SplitRules(heldout=30))
    counts = Counter(np.asarray(classes)[mask])
    assert counts == {"normal": 18, **dict.fromkeys(NAMES[1:], 3)}


def test_student_splits_are_stratified() -> None:
    classes, clusters = real_shape()
    mask = heldout_mask(classes, clusters, SplitRules())
    splits = student_splits(classes, clusters, mask, SplitRules())
    for name in NAMES:
        counts = Counter(s for s, c, held in zip(splits, classes, mask, strict=True) if c == name and not held)
        total = sum(counts.values())
        assert counts["train"] / total == pytest.approx(0.8, abs=0.01)
        assert counts["validation"] / total == pytest.approx(0.1, abs=0.01)


def test_any_prefix_of_the_order_is_balanced_as_the_data() -> None:
    classes, clusters = real_shape()
    mask = heldout_mask(classes, clusters, SplitRules())
    order = interleaved_order(classes, mask, SplitRules())
    assert sorted(order) == list(range(len(classes)))
    sequence = np.asarray(classes)[np.argsort(order)]
    passing = int((~mask).sum())
    # The pass pool comes first, so that a prefix of it is a prefix of the whole.
    assert set(order[~mask]) == set(range(passing))
    shares = {name: np.mean(sequence[:passing] == name) for name in NAMES}
    for prefix in (10, 280, 2000, passing):
        for name in NAMES:
            assert abs((sequence[:prefix] == name).sum() - shares[name] * prefix) <= 1


def test_seeds_decide() -> None:
    classes, clusters = real_shape(500)
    rules = [SplitRules(seed=seed, heldout=50) for seed in (0, 0, 1)]
    masks = [heldout_mask(classes, clusters, rule) for rule in rules]
    orders = [interleaved_order(classes, mask, rule) for mask, rule in zip(masks, rules, strict=True)]
    assert np.array_equal(masks[0], masks[1])
    assert np.array_equal(orders[0], orders[1])
    assert not np.array_equal(masks[0], masks[2])
    assert not np.array_equal(orders[0], orders[2])


def test_tiny_sets_keep_something_to_train_on() -> None:
    classes, clusters = ["normal"] * 4 + ["result_win"] * 4, list(range(8))
    mask = heldout_mask(classes, clusters, SplitRules())
    assert mask.sum() == 4
    assert Counter(np.asarray(classes)[mask]) == {"normal": 2, "result_win": 2}
    assert not heldout_mask(classes, [0] * 8, SplitRules()).any()
    assert heldout_mask(["normal"], [0], SplitRules()).sum() == 0


def rows(classes: list[str]) -> list[SourceRow]:
    return [SourceRow(number, f"{number}", distribution=name) for number, name in enumerate(classes, 1)]


def test_selection_by_class_ignores_case_and_keeps_rows_without_class() -> None:
    given_rows = rows(["normal", "Macro_success", "", "macro_success"])
    chosen = select_rows(given_rows, Selection(classes=("MACRO_success",)), 0)
    assert [row.row for row in chosen] == [2, 3, 4]
    with pytest.raises(UsageError, match="no row has the class perfect") as caught:
        select_rows(given_rows, Selection(classes=("perfect",)), 0)
    assert "macro_success" in caught.value.hint


def test_limit_is_balanced_and_sample_is_per_class() -> None:
    given_rows = rows(["normal"] * 60 + ["result_win"] * 20 + ["result_lose"] * 20)
    limited = select_rows(given_rows, Selection(limit=10), 0)
    assert Counter(row.mechanics_class for row in limited) == {"normal": 6, "result_win": 2, "result_lose": 2}
    sampled = select_rows(given_rows, Selection(sample_per_class=3), 0)
    assert Counter(row.mechanics_class for row in sampled) == {"normal": 3, "result_win": 3, "result_lose": 3}
    assert [row.row for row in sampled] == sorted(row.row for row in sampled)
    assert select_rows(given_rows, Selection(), 0) == tuple(given_rows)
    assert select_rows(given_rows, Selection(limit=10), 1) != limited
