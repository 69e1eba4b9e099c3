"""`--dry-run`'s numbers, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.errors import InputError, UsageError
from stateplay_rl.stages.train_nft.inputs import TrainInputs
from stateplay_rl.stages.train_nft.plan import make_plan
from tests.stages.train_nft.helpers import make_config, write_tiny_conditions


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plan")
    write_tiny_conditions(root, passing=7, heldout=2)
    return root / "conditions"


def plan(folder: Path, inputs: TrainInputs | None = None, **changes: object) -> dict[str, str]:
    facts = {
        "stage_conditions": 7,
        "conditions_per_batch": 3,
        "optimizer": {"samples_per_step": 4, "inner_epochs": 2},
        **changes,
    }
    return dict(make_plan(make_config(**facts), inputs or TrainInputs(folder), folder.parent / "run"))


def test_what_would_run(folder: Path) -> None:
    """Batches of 3, 3, 1 conditions; two candidates: 6, 6, 2 samples: 2 + 2 + 1 steps of 4 in each of 2 passes."""
    rows = plan(folder, heldout={"conditions": 2, "samples": 2, "every_batches": 2})
    assert rows["batches"] == "3 of 3 conditions, 2 candidates, the last of 1"
    assert rows["sampling"].startswith("14 candidates, 3 euler steps")
    assert rows["optimizer steps"].startswith("at most 10 of 4 samples")
    assert rows["judge"].endswith("7 groups, one request each")
    # Before the first batch, after the second, after the last.
    assert rows["held-out"] == "3 evaluations of 2 x 2"
    assert "held-out" not in plan(folder)
    assert plan(folder, heldout={"conditions": 2, "every_batches": 3})["held-out"].startswith("2 evaluations")
    assert rows["name"] == "nft_flr2e-05_blr0.0001_schedsteps10_swarmup0_bwarmup0"
    assert rows["segment"] == "stage A: 7 of 7 conditions of the pass"
    for name in ("disk", "memory", "time", "trained", "cost bound"):
        assert rows[name]


def test_the_cost_is_a_bound(folder: Path) -> None:
    """7 groups and 2 evaluations of 2 held-out conditions, each asked about at most twice: 22 requests."""
    assert plan(folder)["cost bound"] == "0: no paid request"
    api = {"judge": {"name": "openai"}, "heldout_requests": 5, "heldout": {"conditions": 2, "every_batches": 1}}
    assert plan(folder, **api)["cost bound"].startswith("at most 22 paid requests (11 groups")
    prices = {"prices": {"gpt-6.1-sol": {"input_per_million": 0.0, "output_per_million": 1000.0}}}
    rows = plan(folder, **{**api, "judge": {"name": "openai", "requests": prices}})
    # 4,096 tokens of output at 0.001 each, 22 times.
    assert rows["cost bound"].startswith(f"at most {22 * 4.096:.2f}, about {11 * 0.6:.2f} when all goes well")
    assert rows["held-out"] == "4 evaluations of 2 x 2, 2 within heldout_requests 5, 2 by the referee"
    off = plan(folder, judge={"name": "openai"}, heldout={"conditions": 2}, referee="off")
    assert off["held-out"].startswith("off")


def test_more_gpus_take_less_time(folder: Path) -> None:
    assert "on 1 CPU process," in plan(folder)["time"]
    assert "on 7 CPU processes" in plan(folder, plan={"gpus": 7})["time"]


def test_too_few_conditions_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="7 conditions of pool 'pass' are left, stage A wants 8") as caught:
        plan(folder, stage_conditions=8)
    assert "stage_conditions=7" in caught.value.hint
    with pytest.raises(InputError, match="2 held-out conditions, 3 are asked for"):
        plan(folder, heldout={"conditions": 3})


def test_stage_c_needs_a_run_and_says_what_its_gate_would_say(folder: Path) -> None:
    with pytest.raises(InputError, match="holds no finished stage A"):
        plan(folder, stage="c")


@pytest.mark.parametrize(
    ("inputs", "changes"),
    [({"overwrite": True}, {"extend": 280}), ({"groups": Path("g")}, {}), ({"overwrite": True}, {"stage": "c"})],
)
def test_what_excludes_each_other_is_refused(
    folder: Path, inputs: dict[str, object], changes: dict[str, object]
) -> None:
    with pytest.raises(UsageError):
        plan(folder, TrainInputs(folder, **inputs), **changes)  # type: ignore[arg-type]
