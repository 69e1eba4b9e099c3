"""The gradient map: NFT, video anchor and transition anchor, in each of the three parameter modes.

| loss | module B | coupling LoRA |
| --- | --- | --- |
| NFT | yes | yes |
| video anchor | yes | yes |
| transition anchor | yes, from the second step on | never: a constant where only the coupling trains |
"""

from __future__ import annotations

import pytest
from torch import Tensor

from stateplay_rl.stages.train_nft.draws import Visit
from stateplay_rl.stages.train_nft.objective import LossSums
from tests.stages.train_nft.helpers import Bench, no_anchors

MODES = {"transition": {"transition"}, "coupling": {"coupling_lora"}, "joint": {"transition", "coupling_lora"}}
LOSSES = {
    "nft": {},
    "fm_real": {"fm_real": 1.0},
    "transition_real": {"transition_real": 1.0},
}


def reached(mode: str, loss: str, slots: int | None = None) -> set[str]:
    """Parameter groups that one loss alone moves; any other parameter with a gradient fails at once."""
    bench = Bench(mode=mode, anchors=no_anchors(**LOSSES[loss]))
    if slots is not None:
        for name in list(bench.inputs):
            bench.shorten(name, slots)
    # At equal policies NFT's gradient is proportional to r - 1/2: with r of a half only the anchors are left.
    samples = bench.samples(2, r=(1.0, 1.0) if loss == "nft" else (0.5, 0.5))
    prepared = bench.objective.prepare(samples, Visit(0, 0, anchors=True), None)
    with bench.world.policies.live_window():
        total: Tensor = bench.objective.losses(prepared, LossSums()).sum()
        total.backward()
    trained = {id(p) for group in bench.groups for p in group.parameters}
    for name, parameter in bench.world.transformer.named_parameters():
        assert parameter.grad is None or id(parameter) in trained, name
    return {
        group.name
        for group in bench.groups
        if any(p.grad is not None and float(p.grad.abs().max()) > 1e-7 for p in group.parameters)
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", ["nft", "fm_real"])
def test_the_picture_reaches_whatever_is_trained(mode: str, loss: str) -> None:
    assert reached(mode, loss) == MODES[mode]


@pytest.mark.parametrize("mode", MODES)
def test_the_codes_reach_module_b_only(mode: str) -> None:
    assert reached(mode, "transition_real") == MODES[mode] & {"transition"}


@pytest.mark.parametrize("mode", ["transition", "joint"])
def test_the_codes_of_the_first_step_reach_nothing(mode: str) -> None:
    """Two slots: the only prediction is made from the frozen initializer's state."""
    assert reached(mode, "transition_real", slots=2) == set()
