"""Which clips may come from the same episode: cautious clusters from pictures, states and buttons.

The source names no episodes, so this is inference, and it errs on the side of joining: two clips join if
their first frames look alike and either their initial states are adjacent or their buttons near-equal.

All distances are sums of small whole numbers, exact in float32: the clusters do not depend on the machine.
Shapes: N clips, P pairs, D thumbnail values, W windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stateplay_rl.config.conditions import ClusterRules, ClusterThresholds
from stateplay_rl.errors import CheckError

EVIDENCE_STATES = ("timer", "p1_hp", "p2_hp", "p1_meter", "p2_meter")
_HASH_SIDE = 8
_THUMBNAIL = (16, 10)
# 64 levels keep a sum of 480 squared differences below 2**24, where float32 is still exact.
_LEVEL_SHIFT = 2
_BLOCK = 256
_PAIRS_AT_ONCE = 1 << 19
_BIT_COUNTS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)


@dataclass(frozen=True)
class Evidence:
    """What a clip says about its episode; hexadecimal strings, so that it is stored as JSON.

    Args:
        hash_hex: 64-bit difference hash of the first frame.
        thumbnail_hex: first frame at 16x10 RGB, 64 levels.
        buttons_hex: bits of the first row of each window, packed.
        windows: number of windows.
        states: initial `EVIDENCE_STATES`; None where unknown.
    """

    hash_hex: str
    thumbnail_hex: str
    buttons_hex: str
    windows: int
    states: tuple[float | None, ...]


@dataclass(frozen=True)
class Clustering:
    """Clusters of all clips, in the order given.

    Args:
        labels: cluster number per clip, numbered by first appearance.
        level: index of the thresholds used; None when the episodes were given.
        largest_by_level: size of the largest cluster at each level tried.
        limit: the largest size that is accepted.
    """

    labels: tuple[int, ...]
    level: int | None
    largest_by_level: tuple[int, ...]
    limit: int

    def sizes(self) -> NDArray[np.int64]:
        """Size of each cluster."""
        return np.bincount(np.asarray(self.labels, dtype=np.int64))


def gather_evidence(
    first_frame_hwC: NDArray[np.uint8],
    raw_RK: NDArray[np.float32],
    window: int,
    states: tuple[float | None, ...],
) -> Evidence:
    """The evidence of one clip from its first frame, raw buttons and initial states."""
    image = Image.fromarray(first_frame_hwC)
    grey = np.asarray(image.convert("L").resize((_HASH_SIDE + 1, _HASH_SIDE), Image.Resampling.BOX))
    bits = np.packbits(grey[:, 1:] > grey[:, :-1])
    thumbnail = np.asarray(image.resize(_THUMBNAIL, Image.Resampling.BOX)) >> _LEVEL_SHIFT
    presses = raw_RK[::window] > 0
    return Evidence(
        bits.tobytes().hex(),
        thumbnail.astype(np.uint8).tobytes().hex(),
        np.packbits(presses).tobytes().hex(),
        int(presses.shape[0]),
        states,
    )


def infer_clusters(evidence: Sequence[Evidence], rules: ClusterRules) -> Clustering:
    """Clusters at the most cautious thresholds whose largest cluster is small enough.

    A share of a handful of clips means nothing, so clusters of up to `largest_always_allowed` clips pass.

    Raises:
        CheckError: the largest cluster is too large even at the strictest thresholds.
    """
    features = _Features.of(evidence)
    limit = max(int(rules.largest_share * len(evidence)), rules.largest_always_allowed)
    largest = []
    for level, thresholds in enumerate(rules.levels):
        labels = _connected(features, thresholds)
        largest.append(int(np.bincount(labels).max(initial=0)))
        if largest[-1] <= limit:
            return Clustering(tuple(labels.tolist()), level, tuple(largest), limit)
    raise CheckError(
        f"{largest[-1]} of {len(evidence)} clips look like one episode, at most {limit} may (largest "
        f"cluster by thresholds: {', '.join(map(str, largest))})",
        "give an episode index with --episodes FILE, or set clusters.levels / clusters.largest_share",
    )


def given_clusters(episodes: Sequence[str], rules: ClusterRules) -> Clustering:
    """Clusters from an episode index: known, so nothing is tightened."""
    numbers: dict[str, int] = {}
    labels = tuple(numbers.setdefault(episode, len(numbers)) for episode in episodes)
    limit = max(int(rules.largest_share * len(episodes)), rules.largest_always_allowed)
    largest = int(np.bincount(np.asarray(labels, dtype=np.int64)).max(initial=0))
    return Clustering(labels, None, (largest,), limit)


@dataclass(frozen=True)
class _Features:
    signs_NB: NDArray[np.float32]
    thumbnails_ND: NDArray[np.float32]
    buttons_NW: NDArray[np.uint8]
    windows_N: NDArray[np.int64]
    states_NS: NDArray[np.float64]

    @classmethod
    def of(cls, evidence: Sequence[Evidence]) -> _Features:
        hashes = np.stack([np.frombuffer(bytes.fromhex(e.hash_hex), np.uint8) for e in evidence])
        thumbnails = np.stack([np.frombuffer(bytes.fromhex(e.thumbnail_hex), np.uint8) for e in evidence])
        packed = [np.frombuffer(bytes.fromhex(e.buttons_hex), np.uint8) for e in evidence]
        buttons = np.zeros((len(packed), max(p.size for p in packed)), np.uint8)
        for row, bits in zip(buttons, packed, strict=True):
            row[: bits.size] = bits
        states = [[np.nan if value is None else value for value in e.states] for e in evidence]
        return cls(
            np.unpackbits(hashes, axis=1).astype(np.float32) * 2 - 1,
            thumbnails.astype(np.float32),
            buttons,
            np.array([e.windows for e in evidence]),
            np.array(states, dtype=np.float64),
        )


def _connected(features: _Features, thresholds: ClusterThresholds) -> NDArray[np.int64]:
    """Connected components of the "may be one episode" relation, numbered by first appearance."""
    parent_N = np.arange(features.signs_NB.shape[0])
    for all_left_P, all_right_P in _alike_pairs(features, thresholds):
        # Most pairs of a large cluster are settled already.
        apart_P = parent_N[all_left_P] != parent_N[all_right_P]
        left_P, right_P = all_left_P[apart_P], all_right_P[apart_P]
        joined_P = _adjacent(features, thresholds, left_P, right_P)
        joined_P |= _near_equal(features, thresholds, left_P, right_P)
        _unite(parent_N, left_P[joined_P], right_P[joined_P])
    # A root is the smallest member, so ranks of roots are numbers by first appearance.
    return np.unique(parent_N, return_inverse=True)[1].astype(np.int64)


def _alike_pairs(
    features: _Features, thresholds: ClusterThresholds
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs (left < right) whose pictures look alike, a bounded number at a time."""
    signs, thumbnails = features.signs_NB, features.thumbnails_ND
    squares_N = (thumbnails**2).sum(axis=1)
    largest = thresholds.pixel_levels**2 * thumbnails.shape[1]
    for start in range(0, signs.shape[0], _BLOCK):
        stop = min(start + _BLOCK, signs.shape[0])
        # +1 and -1: the product of two hashes is 64 - 2 * (differing bits).
        near = signs[start:stop] @ signs[start:].T >= 64 - 2 * thresholds.hash_bits
        near &= np.arange(start, signs.shape[0]) > np.arange(start, stop)[:, None]
        columns = np.flatnonzero(near.any(axis=0)) + start
        if not columns.size:
            continue
        product = thumbnails[start:stop] @ thumbnails[columns].T
        distance = squares_N[start:stop, None] + squares_N[columns] - 2 * product
        rows_P, columns_P = np.nonzero(near[:, columns - start] & (distance <= largest))
        for first in range(0, rows_P.size, _PAIRS_AT_ONCE):
            part = slice(first, first + _PAIRS_AT_ONCE)
            yield rows_P[part] + start, columns[columns_P[part]]


def _adjacent(
    features: _Features, thresholds: ClusterThresholds, left_P: NDArray[np.int64], right_P: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether timers and bars are close; an unknown value never separates two clips."""
    allowed_S = np.array([thresholds.timer] + [thresholds.bars] * (features.states_NS.shape[1] - 1))
    difference_PS = np.abs(features.states_NS[left_P] - features.states_NS[right_P])
    return np.asarray(~(difference_PS > allowed_S).any(axis=1))


def _near_equal(
    features: _Features, thresholds: ClusterThresholds, left_P: NDArray[np.int64], right_P: NDArray[np.int64]
) -> NDArray[np.bool_]:
    differing = _BIT_COUNTS[features.buttons_NW[left_P] ^ features.buttons_NW[right_P]]
    entries_P = np.maximum(features.windows_N[left_P], features.windows_N[right_P]) * 11
    return np.asarray(differing.sum(axis=1) <= thresholds.action_share * entries_P)


def _unite(parent_N: NDArray[np.int64], left_P: NDArray[np.int64], right_P: NDArray[np.int64]) -> None:
    """Union of many pairs at once; every entry of `parent_N` points at its root before and after."""
    while left_P.size:
        left_roots, right_roots = parent_N[left_P], parent_N[right_P]
        apart = left_roots != right_roots
        left_P, right_P = left_P[apart], right_P[apart]
        high = np.maximum(left_roots[apart], right_roots[apart])
        np.minimum.at(parent_N, high, np.minimum(left_roots[apart], right_roots[apart]))
        while True:
            shorter = parent_N[parent_N]
            if np.array_equal(shorter, parent_N):
                break
            parent_N[:] = shorter
