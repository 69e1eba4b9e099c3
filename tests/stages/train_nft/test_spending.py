"""A run's requests: counted from the store, batch by batch, also those of a killed process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stateplay_rl.config.score import SingleJudgeConfig
from stateplay_rl.judges.base import Judge
from stateplay_rl.judges.openai_judge import OpenAIJudge
from stateplay_rl.stages.judge_choice import make_judge
from stateplay_rl.stages.train_nft.spending import Spending
from stateplay_rl.stores import layout
from stateplay_rl.stores.attempts import AttemptEnd, Intent
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.jsonl import LineLog
from stateplay_rl.stores.requests import RequestStore
from tests.reporting.fixture_dirs import write_group

ANOTHER = "ab" * 32


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[OpenAIJudge]:
    spec = SingleJudgeConfig(name="openai", base_url="http://127.0.0.1:9/v1")
    found = OpenAIJudge(spec, tmp_path / "requests")
    yield found
    found.close()


def asked(judge: OpenAIJudge, group: str, cost: float | None, state: str = "answered", protocol: str = "") -> None:
    with RequestStore(judge.store_folder) as store:
        protocol = protocol or judge.protocol_sha256
        key = f"{group}-{state}-{protocol[:8]}"
        intent = Intent(key, group, judge.judge_id, protocol, "m", "u", (), "score", 100)
        request = store.begin(intent, 0)
        assert request is not None
        raw = {"request": {}, "answer": "{}"} if state == "answered" else None
        store.end(request, AttemptEnd(state, cost=cost), raw)  # type: ignore[arg-type]


def test_a_batch_is_charged_for_its_groups_and_for_the_evaluation_after_it(tmp_path: Path, judge: OpenAIJudge) -> None:
    run = tmp_path / "run"
    for batch in (0, 1):
        write_group(GroupStore(run / f"heldout/{batch}-live"), f"h{batch}", "c", "normal")
        LineLog(run / layout.HELDOUT).append({"batch": batch, "groups": f"heldout/{batch}-live"})
    for group, cost in (("g0", 1.0), ("h0", 0.25), ("h1", 0.5), ("elsewhere", 100.0)):
        asked(judge, group, cost)
    asked(judge, "g0", 0.0, "rejected")
    asked(judge, "g0", 100.0, protocol=ANOTHER)
    spending = Spending(run, [judge, judge])
    first = spending.of_batch(0, ["g0"], opens_segment=True)
    assert first == {"attempts": 4, "billed": 3, "cost": 1.75}
    assert spending.of_batch(1, ["g1"], opens_segment=False) == {"attempts": 0, "billed": 0, "cost": 0.0}
    assert spending.words() == "4 requests, cost 1.75"


def test_a_resumed_run_goes_on_counting_and_one_unknown_price_makes_the_sum_unknown(
    tmp_path: Path, judge: OpenAIJudge
) -> None:
    log = LineLog(tmp_path / layout.TIMINGS)
    log.append({"batch": 0, "seconds": {}, "requests": {"attempts": 3, "billed": 2, "cost": 1.5}})
    log.append({"batch": 1, "seconds": {}, "requests": None})
    log.append({"batch": 2, "seconds": {}})
    spending = Spending(tmp_path, [judge])
    assert spending.words() == "3 requests, cost 1.50"
    asked(judge, "g3", None)
    spending.of_batch(3, ["g3"], opens_segment=False)
    assert spending.words() == "4 requests"


def test_a_judge_that_pays_nothing_is_not_counted(tmp_path: Path) -> None:
    referee: Judge = make_judge(SingleJudgeConfig(name="referee"), world="arena", out=tmp_path)
    spending = Spending(tmp_path, [referee])
    assert spending.of_batch(0, ["g0"], opens_segment=True) is None
    assert spending.words() == ""
