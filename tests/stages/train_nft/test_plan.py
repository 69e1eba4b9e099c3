"""`--dry-run`'s numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateplay_rl.errors import InputError
from stateplay_rl.stages.train_nft.plan import make_plan
from tests.stages.train_nft.helpers import make_config, write_tiny_conditions


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plan")
    write_tiny_conditions(root, passing=7, heldout=2)
    return root / "conditions"


def plan(folder: Path, **changes: object) -> dict[str, str]:
    facts = {
        "stage_conditions": 7,
        "conditions_per_batch": 3,
        "optimizer": {"samples_per_step": 4, "inner_epochs": 2},
        **changes,
    }
    return dict(make_plan(make_config(**facts), folder))


def test_what_would_run(folder: Path) -> None:
    """Batches of 3, 3, 1 conditions; two candidates: 6, 6, 2 samples: 2 + 2 + 1 steps of 4 in each of 2 passes."""
    rows = plan(folder, heldout={"conditions": 2, "samples": 2, "every_batches": 2})
    assert rows["batches"].startswith("3 of 3 conditions, 2 candidates")
    assert rows["sampling"].startswith("14 candidates, 3 euler steps")
    assert rows["optimizer steps"].startswith("at most 10 of 4 samples")
    assert rows["judge"].endswith("7 groups, one request each")
    # Before the first batch, after the second, after the last.
    assert rows["held-out"] == "3 evaluations of 2 x 2"
    assert plan(folder)["held-out"].startswith("0 evaluations")
    assert plan(folder, heldout={"conditions": 2, "every_batches": 3})["held-out"].startswith("2 evaluations")


def test_too_few_conditions_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="7 conditions of pool 'pass', 8 are asked for") as caught:
        plan(folder, stage_conditions=8)
    assert "stage_conditions=7" in caught.value.hint
    with pytest.raises(InputError, match="2 held-out conditions, 3 are asked for"):
        plan(folder, heldout={"conditions": 3})
