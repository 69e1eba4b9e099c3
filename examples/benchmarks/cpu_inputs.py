"""Inputs of the CPU benchmarks: checkpoints without content, clips, groups, scores, a judge, a server."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from stateplay_rl.arena.clips import METADATA_COLUMNS
from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.config.buttons import BUTTONS
from stateplay_rl.judges.base import GroupVerdict, scored
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_json
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.scores import ScoreRow, ScoreTable
from stateplay_rl.stores.video import encode_mp4

FRAMES, WINDOW, FPS = 100, 10, 20.0
PROMPT = "NPC: Active_Behavior(Walk: Moves), Strategy(Rushdown: comes closer)"
CLASSES = ("Normal", "Macro_success", "Macro_fail", "Result_win", "Result_lose")
ANSWER_SECONDS = 0.05
ANSWER = json.dumps(
    {
        "model": "gpt-6.1-sol",
        "choices": [{"message": {"content": '{"scores": {"A": 1, "B": 2, "C": 3, "D": 4}}'}, "finish_reason": "stop"}],
    }
).encode()


def write_sparse_checkpoint(path: Path, gigabytes: float) -> Path:
    """A safetensors file of the backbone's names with bfloat16 zeros that take no place on the disk."""
    tensors, offset, layer = {}, 0, 0
    while offset < gigabytes * 1e9:
        for part in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "ffn.0", "ffn.2"):
            shape = {"ffn.0": [14336, 3072], "ffn.2": [3072, 14336]}.get(part, [3072, 3072])
            size = 2 * shape[0] * shape[1]
            name = f"blocks.{layer}.{part}.weight"
            tensors[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
            offset += size
        layer += 1
    header = json.dumps(tensors).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + offset)
    return path


def actions_parquet(seed: int) -> bytes:
    """An action table as the data has it: buttons on every 10th row, states that stand still."""
    draws = np.random.default_rng(seed)
    rows = np.arange(FRAMES)
    columns = {"frame_id": rows, "p1_hp": rows * 0 + 90, "p2_hp": rows * 0 + 80, "p1_meter": rows * 0 + 20}
    columns |= {"p2_meter": rows * 0 + 10, "macro_ready": rows * 0, "timer": rows * 0 + int(draws.integers(10, 90))}
    held = (draws.random((FRAMES // WINDOW, len(BUTTONS))) < 0.2).repeat(WINDOW, axis=0)
    columns |= {name: np.where(rows % WINDOW == 0, held[:, k], 0) for k, name in enumerate(BUTTONS)}
    buffer = io.BytesIO()
    pq.write_table(pa.table({name: pa.array(values.astype(np.int32)) for name, values in columns.items()}), buffer)
    return buffer.getvalue()


def draw_frames(seed: int, height: int, width: int) -> np.ndarray:
    """uint8 [100, h, w, 3]: a textured scene that is panned, with a figure that moves."""
    draws = np.random.default_rng(seed)
    coarse = draws.integers(40, 210, (height // 16, width // 16, 3)).repeat(16, axis=0).repeat(16, axis=1)
    y, x = np.mgrid[: coarse.shape[0], : coarse.shape[1]]
    scene = np.clip(coarse + (14 * np.sin(x / 5 + seed) * np.cos(y / 7))[..., None], 0, 255).astype(np.uint8)
    frames = []
    for t in range(FRAMES):
        frame = np.roll(scene, t, axis=1)
        left = int(width * (0.4 + 0.2 * np.sin(t / 9 + seed)))
        frame[height // 2 : -height // 8, left : left + width // 10] = draws.integers(0, 255, 3) if t == 0 else 200
        frames.append(frame)
    return np.stack(frames)


def write_video_clips(folder: Path, count: int, height: int, width: int, drawn: int = 6) -> Path:
    """Clips of the real data's form with videos; returns the CSV. A few are drawn, the rest differ in their buttons."""
    videos = []
    for index in range(count):
        clip = folder / "clips" / f"clip_{index:05d}"
        clip.mkdir(parents=True)
        if index < drawn:
            encode_mp4(clip / "video.mp4", draw_frames(index, height, width), FPS)
            videos.append(clip / "video.mp4")
        else:
            os.link(videos[index % drawn], clip / "video.mp4")
        (clip / "actions.parquet").write_bytes(actions_parquet(index))
    with (folder / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(METADATA_COLUMNS)
        for index in range(count):
            name = f"clips/clip_{index:05d}"
            kind = CLASSES[index % len(CLASSES)]
            writer.writerow([f"{name}/video.mp4", f"{name}/actions.parquet", kind, PROMPT, "Rushdown", "Attack"])
    return folder / "metadata.csv"


def write_clip_folders(folder: Path, count: int, pictures: int = 50) -> Path:
    """Clip folders without videos at arena's size: a first frame, buttons, prompt, metadata."""
    frames = []
    for seed in range(min(pictures, count)):
        buffer = io.BytesIO()
        Image.fromarray(draw_frames(seed, 64, 96)[0]).save(buffer, "PNG", compress_level=1)
        frames.append(buffer.getvalue())
    for index in range(count):
        clip = folder / f"clip_{index:05d}"
        clip.mkdir(parents=True)
        (clip / "first_frame.png").write_bytes(frames[index % len(frames)])
        (clip / "actions.parquet").write_bytes(actions_parquet(index))
        (clip / "prompt.txt").write_text(PROMPT, encoding="utf-8")
        values = {"distribution": CLASSES[index % 5], "prompt": PROMPT, "strategy": "Rushdown", "category": "Attack"}
        (clip / "metadata.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


class NoSettings(FrozenConfig):
    """A directory that no command wrote."""


def write_scores(path: Path, groups: Path, names: list[str]) -> Path:
    """A sealed `scores/` of these groups with four scores each."""
    rows = [
        ScoreRow(name, k, float((20 * k + 7 * n) % 101), "scored", None, "constant", "0" * 64, None)
        for n, name in enumerate(names)
        for k in range(4)
    ]
    return seal_scores(path, groups, rows, NoSettings())


def seal_scores(
    path: Path, groups: Path, rows: Sequence[ScoreRow], config: FrozenConfig, verdicts: Sequence[object] = ()
) -> Path:
    """A sealed `scores/` of made-up rows; `verdicts`: a JSON value a line, when there are any."""
    with OutputDirectory.open(
        path,
        schema="scores",
        version=layout.SCHEMAS["scores"],
        command="score",
        config=config,
        inputs={"groups": groups},
        resume=False,
        overwrite=False,
    ) as output:
        ScoreTable(rows).write(output.path / layout.SCORES)
        if verdicts:
            (output.path / layout.VERDICTS).write_text("".join(json.dumps(line) + "\n" for line in verdicts))
        output.seal()
    return path


class ConstantJudge:
    """Looks at nothing: what is left is the cost of `score` itself. A plug-in, `cpu_inputs:ConstantJudge`."""

    judge_id = "constant"
    protocol_sha256 = sha256_json({"judge": judge_id, "version": 1})

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        """10, 20, 30, ..."""
        return scored([10.0 * (k + 1) for k in range(group.record.candidates)])


class _Answering(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        """Read all of it, wait, answer."""
        left = int(self.headers["Content-Length"])
        while left > 0 and (data := self.rfile.read(min(left, 1 << 16))):
            left -= len(data)
        time.sleep(ANSWER_SECONDS)
        self.send_response(200)
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)


class Server(ThreadingHTTPServer):
    """Answers any completion after 50 ms; use as a context manager."""

    daemon_threads, request_queue_size = True, 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Endpoint, with /v1."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"
