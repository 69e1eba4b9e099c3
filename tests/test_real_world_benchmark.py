"""`examples/benchmarks/real_world.py` at arena's size on the CPU: every part runs, and its checks hold."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.scripts import benchmark


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return benchmark("real_world")


def test_every_part_at_arenas_size(script: ModuleType, tmp_path: Path) -> None:
    clips = os.environ.get("STATEPLAY_CLIPS")
    more = ["--clips", clips] if clips and Path(clips).is_dir() else []
    script.main(["--out", str(tmp_path / "out"), "--preset", "arena", "--device", "cpu", *more])
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["audit"]["trainable"]
    assert result["tensors_identical_after_load"] == 448
    assert result["tensors_identical_after_export"] == 119
    # Four Linears of 5 blocks, rank 8: q 120 -> 64, k and v likewise, out 64 -> 120.
    assert result["coupling_lora_parameters"] == 5 * 4 * 8 * (120 + 64)
    assert {f"rollout, {frames} frames, 2 steps" for frames in (33, 37)} <= set(result["parts"])
    assert (tmp_path / "out" / "candidate_33.mp4").is_file()
    assert not (tmp_path / "out" / "files").exists()


def test_a_changed_tensor_stops_it(script: ModuleType, tmp_path: Path) -> None:
    device = torch.device("cpu")
    saved = script.random_modules("arena", tmp_path, device, torch.float32)
    world_file = script.write_layout(tmp_path, saved, "arena")
    world = script.load_native_world(script.resolve_world(str(world_file)))
    assert script.same_bits(saved, world) == 448
    with torch.no_grad():
        world.transformer.proj_out.bias[3] += 1e-3
    with pytest.raises(SystemExit, match=r"proj_out\.bias came back different"):
        script.same_bits(saved, world)


def test_the_full_size_counts_without_its_weights(script: ModuleType) -> None:
    """About 3.19 million LoRA parameters: 30 blocks, four Linears between 3072 and 256, rank 8."""
    from stateplay_rl.worlds.native import coupling_lora
    from stateplay_rl.worlds.native.modes import trained_groups
    from stateplay_rl.worlds.native.presets import preset
    from stateplay_rl.worlds.native.transformer import LatentStateTransformer

    sizes = preset("stateplay-5b")
    with torch.device("meta"):
        model = LatentStateTransformer(sizes.transformer, sizes.latent_state)
        coupling_lora.inject(model, 0)
    assert sum(group.count for group in trained_groups(model, "coupling")) == 30 * 4 * 8 * (3072 + 256) == 3_194_880
    assert script.LENGTHS["stateplay-5b"] == (97, 101)
    assert script.PIXELS["stateplay-5b"] == (480, 832)
