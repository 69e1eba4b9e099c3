"""Held-out pool, student splits, order and selection: seeded, by whole clusters, balanced by class.

Callers pass conditions in the order of their ids, so that results do not depend on the order of the source.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stateplay_rl.conditions.source import SourceRow
from stateplay_rl.config.conditions import Selection, SplitRules
from stateplay_rl.errors import UsageError

STUDENT_SPLITS = ("train", "validation", "test")
_HELDOUT, _STUDENT, _ORDER, _SELECT = range(4)


def heldout_mask(classes: Sequence[str], clusters: Sequence[int], rules: SplitRules) -> NDArray[np.bool_]:
    """Which conditions no training ever sees: whole clusters, the same number of each class.

    Clusters are visited in seeded order. One is taken if no class in it goes beyond its share; later visits
    fill up where a class is too small for its share. The total never goes beyond the number asked for, and
    neither the total nor any class beyond `heldout_largest_share`: a class must not vanish from training.

    Returns:
        bool [N].
    """
    table_GC, cluster_N = _class_table(classes, clusters)
    largest_C = (rules.heldout_largest_share * table_GC.sum(axis=0)).astype(np.int64)
    wanted = min(rules.heldout, int(rules.heldout_largest_share * len(classes)))
    order = np.random.default_rng([rules.seed, _HELDOUT]).permutation(table_GC.shape[0])
    taken_G = np.zeros(table_GC.shape[0], dtype=bool)
    # Equal shares first (rounded down), then up by one, then whatever fits.
    share = wanted // max(table_GC.shape[1], 1)
    for most_per_class in (share, share + 1, wanted):
        allowed_C = np.minimum(largest_C, most_per_class)
        counts_C = table_GC[taken_G].sum(axis=0)
        for cluster in order[~taken_G[order]]:
            after_C = counts_C + table_GC[cluster]
            if after_C.sum() <= wanted and np.all(after_C <= allowed_C):
                taken_G[cluster] = True
                counts_C = after_C
    return np.asarray(taken_G[cluster_N])


def student_splits(
    classes: Sequence[str], clusters: Sequence[int], heldout_N: NDArray[np.bool_], rules: SplitRules
) -> tuple[str, ...]:
    """Train, validation or test for each condition: by cluster, stratified by class.

    Each cluster of the `pass` pool, large ones first, goes where its classes and the total lack most.
    Held-out conditions are never trained on, so they are `test`.
    """
    table_GC, cluster_N = _class_table(classes, clusters)
    held_G = np.zeros(table_GC.shape[0], dtype=bool)
    held_G[cluster_N[heldout_N]] = True
    shares_S = np.asarray(rules.student_shares) / sum(rules.student_shares)
    lacking_SC = np.outer(shares_S, table_GC[~held_G].sum(axis=0)).astype(np.float64)
    shuffled = np.random.default_rng([rules.seed, _STUDENT]).permutation(table_GC.shape[0])
    large_first = shuffled[np.argsort(-table_GC[shuffled].sum(axis=1), kind="stable")]
    split_G = np.full(table_GC.shape[0], STUDENT_SPLITS.index("test"))
    for cluster in large_first:
        if held_G[cluster]:
            continue
        counts_C = table_GC[cluster]
        need_S = lacking_SC @ (counts_C / counts_C.sum()) + lacking_SC.sum(axis=1)
        split_G[cluster] = int(np.argmax(need_S))
        lacking_SC[split_G[cluster]] -= counts_C
    return tuple(STUDENT_SPLITS[split] for split in split_G[cluster_N])


def interleaved_order(classes: Sequence[str], heldout_N: NDArray[np.bool_], rules: SplitRules) -> NDArray[np.int64]:
    """Position of each condition: the `pass` pool first, then the held-out one, each interleaved by class.

    Returns:
        int64 [N], a permutation.
    """
    random = np.random.default_rng([rules.seed, _ORDER])
    passing = np.flatnonzero(~heldout_N)
    held = np.flatnonzero(heldout_N)
    sequence = [part[_interleave([classes[i] for i in part.tolist()], random)] for part in (passing, held)]
    order = np.empty(len(classes), dtype=np.int64)
    order[np.concatenate(sequence)] = np.arange(len(classes))
    return order


def select_rows(rows: Sequence[SourceRow], select: Selection, seed: int) -> tuple[SourceRow, ...]:
    """The rows to examine, in the order of the source. Rows that turn out to be bad are not replaced.

    Raises:
        UsageError: a class is asked for that no row has.
    """
    wanted = {name.strip().lower() for name in select.classes}
    present = {row.mechanics_class for row in rows}
    if wanted - present:
        hint = f"classes in the source: {', '.join(sorted(present - {''}))}"
        raise UsageError(f"no row has the class {', '.join(sorted(wanted - present))}", hint)
    # A row without a class is no member of another one: it is examined, and rejected with its reason.
    chosen = [row for row in rows if not wanted or row.mechanics_class in {*wanted, ""}]
    if select.sample_per_class is None and select.limit is None:
        return tuple(chosen)
    classes = [row.mechanics_class for row in chosen]
    sequence = _interleave(classes, np.random.default_rng([seed, _SELECT]))
    if select.sample_per_class is not None:
        counts: dict[str, int] = {}
        kept = []
        for index in sequence:
            counts[classes[index]] = counts.get(classes[index], 0) + 1
            if counts[classes[index]] <= select.sample_per_class:
                kept.append(index)
        sequence = np.asarray(kept, dtype=np.int64)
    return tuple(chosen[index] for index in np.sort(sequence[: select.limit]))


def _interleave(classes: Sequence[str], random: np.random.Generator) -> NDArray[np.int64]:
    """A shuffled sequence of indices; any prefix holds the classes as the whole does, within one each.

    Member i of a class of n comes at (i + 1/2) / n of the way.
    """
    names = np.asarray(classes, dtype=object)
    place_N = np.empty(len(classes))
    for name in sorted(set(classes)):
        members = random.permutation(np.flatnonzero(names == name))
        place_N[members] = (np.arange(members.size) + 0.5) / members.size
    # Rare classes win ties by a seeded draw, not by their name.
    return np.lexsort((random.random(len(classes)), place_N)).astype(np.int64)


def _class_table(classes: Sequence[str], clusters: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Members by cluster and class [G, C], and the cluster's row for each condition [N]."""
    cluster_N = np.unique(np.asarray(clusters, dtype=np.int64), return_inverse=True)[1].reshape(-1)
    names = sorted(set(classes))
    class_N = np.asarray([names.index(name) for name in classes], dtype=np.int64)
    table_GC = np.zeros((int(cluster_N.max(initial=-1)) + 1, len(names)), dtype=np.int64)
    np.add.at(table_GC, (cluster_N, class_N), 1)
    return table_GC, cluster_N.astype(np.int64)
