"""The real world's config and the shape of its groups, for tests of plans; no file behind it exists."""

from __future__ import annotations

from pathlib import Path

from stateplay_rl.config.world import WorldConfig, WorldFiles
from stateplay_rl.judges.request_size import GroupShape
from stateplay_rl.stages.train_nft.segments import SegmentPlan

STAGE_A = SegmentPlan("a", 0, 0, 2000, 28)
SHAPE = GroupShape(candidates=4, frames=97, rows=97, fps=20.0, width=832, height=480, prompt="x" * 400)


def real_world(**changes: object) -> WorldConfig:
    file = Path("weights.safetensors")
    files = WorldFiles(
        checkpoint=(file,), transition_tokenizer=file, vae=file, text_encoder=file, text_tokenizer=Path("t.json")
    )
    return WorldConfig(name="real", preset="stateplay-5b", files=files).model_copy(update=changes)
