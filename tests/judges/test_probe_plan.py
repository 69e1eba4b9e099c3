"""What a probe shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stateplay_rl.judges.probe_plan import ProbePlan, planted_videos, variant_group
from stateplay_rl.stores.video import decode_mp4
from tests.judges.paid_groups import stored


def test_each_candidate_stands_once_in_each_place() -> None:
    variants = ProbePlan(3, True, True).variants(4, 0, has_reference=True)
    square = [v.sources for v in variants if v.kind == "rotation" or (v.kind == "repeat" and v.repeat == 0)]
    assert all(sorted(column) == [0, 1, 2, 3] for column in zip(*square, strict=True))
    assert [v.repeat for v in variants if v.kind == "repeat"] == [0, 1, 2]
    assert [v.sources for v in variants if v.kind == "reversal"] == [(3, 2, 1, 0)]
    planted = [v.sources for v in variants if v.kind == "planted"]
    assert [row[0] for row in planted] == ["duplicate", "reference", "frozen", "backwards", "other_clip"]
    assert all(row[1:] == (0, 1, 2) for row in planted)
    assert len(variants) == 3 + 3 + 1 + 5 + 1


def test_planted_candidates_stand_in_other_places_in_other_groups() -> None:
    places = [ProbePlan(2, False, False).variants(4, n, has_reference=False)[-1].sources for n in range(5)]
    assert [row.index("duplicate") for row in places] == [0, 1, 2, 3, 0]


def test_two_candidates_have_no_reversal_of_their_own() -> None:
    variants = ProbePlan(2, False, False).variants(2, 0, has_reference=False)
    assert [v.kind for v in variants] == ["repeat", "repeat", "rotation", "planted"]


def test_a_variant_shows_what_it_says(tmp_path: Path) -> None:
    group, other = stored(tmp_path / "g"), stored(tmp_path / "o", frames=29)
    planted = planted_videos(group, other, tmp_path / "planted")
    variants = ProbePlan(2, True, False).variants(4, 1, has_reference=True)
    for variant in variants:
        shown = variant_group(group, variant, planted)
        assert shown.record.candidates == 4
        for place, source in enumerate(variant.sources):
            video = decode_mp4(shown.candidate_video(place))
            assert len(video) == 33
            if isinstance(source, int):
                assert shown.candidate_video(place) == group.candidate_video(source)
                assert shown.record.seeds[place] == group.record.seeds[source]
            elif source == "frozen":
                assert np.ptp(video.astype(int).mean(axis=(1, 2, 3))) < 3
            elif source == "backwards":
                means = video.astype(int).mean(axis=(1, 2, 3))
                assert means[0] > means[-1] + 10
            elif source == "reference":
                assert shown.candidate_video(place) == group.reference_video()
