"""Payload building and memory of the paid judge at the real size: 480x832, 97 frames, 121 pictures a request.

    python examples/benchmarks/judge_payload.py --out build/judge_payload [--picture FIRST_FRAME.png] [--groups 56]

Two measurements, printed and written to ``result.json``: seconds of one core for one payload, and the peak memory of a
process that holds 28 such requests in flight at a local server. Videos are a picture that is panned and shaken, with
moving figures: about the bytes of real clips. Give a first frame of your own for a truer picture.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

SIZE = (480, 832)
FRAMES = 97
ANSWER = json.dumps(
    {
        "model": "gpt-6.1-sol",
        "choices": [{"message": {"content": '{"scores": {"A": 1, "B": 2, "C": 3, "D": 4}}'}, "finish_reason": "stop"}],
    }
).encode()


def clip(picture_hwC: np.ndarray, seed: int) -> np.ndarray:
    """uint8 [97, 480, 832, 3]: the picture panned, with two figures that move."""
    rng = np.random.default_rng(seed)
    colours = rng.integers(40, 220, (2, 3))
    frames = []
    for t in range(FRAMES):
        frame = np.roll(picture_hwC, (t + seed) % 24, axis=1).copy()
        for figure, colour in enumerate(colours):
            x = 120 + 420 * figure + int(60 * np.sin(t / 9 + seed + figure))
            frame[200:420, x : x + 70] = colour
        frames.append(frame)
    return np.stack(frames)


def default_picture() -> np.ndarray:
    """A smooth scene with some texture, uint8 [480, 832, 3]."""
    rng = np.random.default_rng(0)
    coarse = np.kron(rng.integers(60, 200, (15, 26, 3)), np.ones((32, 32, 1)))
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    texture = 12 * np.sin(x / 5) * np.cos(y / 7) + 10 * np.sin((x + y) / 23)
    return np.clip(coarse + texture[..., None], 0, 255).astype(np.uint8)


def write_group(folder: Path, picture: Path | None) -> None:
    """One group of real size below `folder`."""
    import torch
    from PIL import Image

    from stateplay_rl.stores.groups import GroupRecord, GroupStore

    scene = default_picture()
    if picture is not None:
        with Image.open(picture) as image:
            scene = np.asarray(image.convert("RGB").resize((SIZE[1], SIZE[0])))
    rows = tuple(tuple(int((row // 10 + k) % 5 == 0) for k in range(11)) for row in range(FRAMES))
    record = GroupRecord(
        group_id="g0",
        condition_id="c0",
        batch=0,
        policy_sha256="0" * 64,
        world_sha256="1" * 64,
        sampler="euler",
        sampling_steps=30,
        seeds=(0, 1, 2, 3),
        prompt="NPC: Active_Behavior(Walk: Moves), Strategy(Rushdown: comes closer)",
        fps=20.0,
        frames=FRAMES,
        latent_frames=25,
        buttons=rows,
        action_bin_edges=tuple((4 * i, 4 * i + 4) for i in range(24)),
        mechanics_class="normal",
    )
    latents = [torch.zeros(1, 25, 1, 1, dtype=torch.bfloat16)] * 4
    videos = [clip(scene, seed) for seed in range(4)]
    GroupStore(folder).write(record, videos[0][0], latents, videos, clip(scene, 9))


def payload_seconds(folder: Path, repeats: int = 5) -> dict[str, float]:
    """Processor and wall seconds of one payload."""
    from stateplay_rl.config.score import SingleJudgeConfig
    from stateplay_rl.judges.openai_judge import OpenAIJudge
    from stateplay_rl.stores.atomic import sha256_bytes
    from stateplay_rl.stores.groups import GroupStore

    judge = OpenAIJudge(SingleJudgeConfig(name="openai"), folder / "requests")
    group = GroupStore(folder).read("g0")
    cpu, wall = [], []
    for _ in range(repeats):
        began, used = time.monotonic(), time.process_time()
        payload = judge.preview(group, sha256_bytes)
        wall.append(time.monotonic() - began)
        cpu.append(time.process_time() - used)
    return {
        "cpu_seconds": round(statistics.median(cpu), 3),
        "wall_seconds": round(statistics.median(wall), 3),
        "pictures": len(payload.images),
        "megabytes": round(payload.image_bytes / 1e6, 2),
        "estimated_input_tokens": payload.estimated_input_tokens(),
    }


class _Slow(BaseHTTPRequestHandler):
    """Reads the whole request, holds it until enough others are there, answers."""

    server: _SlowServer

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        """One chat completion."""
        left = int(self.headers["Content-Length"])
        while left > 0 and (data := self.rfile.read(min(left, 1 << 16))):
            left -= len(data)
        self.server.hold()
        self.send_response(200)
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)


class _SlowServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, together: int) -> None:
        super().__init__(("127.0.0.1", 0), _Slow)
        self.together, self.now, self.most = together, 0, 0
        self.changed = threading.Condition()

    def hold(self) -> None:
        """Until `together` requests were here at one time."""
        with self.changed:
            self.now += 1
            self.most = max(self.most, self.now)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.most >= self.together, 300)
            self.now -= 1


def in_flight_memory(folder: Path, groups: int, in_flight: int) -> dict[str, float]:
    """Peak memory of a process that judges `groups` repeats of the group, `in_flight` at a time."""
    server = _SlowServer(in_flight)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    began = time.monotonic()
    command = [sys.executable, __file__, "--out", str(folder), "--worker", url]
    command += ["--groups", str(groups), "--in-flight", str(in_flight)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ}).stdout
    server.shutdown()
    return {
        "peak_megabytes": float(output.split()[-1]),
        "requests": groups,
        "most_in_flight": server.most,
        "seconds": round(time.monotonic() - began, 1),
    }


def worker(folder: Path, url: str, groups: int, in_flight: int) -> None:
    """Judge, in a process of its own, and print the peak memory in megabytes."""
    from stateplay_rl.config.judging import RequestsConfig
    from stateplay_rl.config.score import SingleJudgeConfig
    from stateplay_rl.judges.openai_judge import OpenAIJudge
    from stateplay_rl.runtime import Progress
    from stateplay_rl.stages.judging_pool import judged_lines
    from stateplay_rl.stores.groups import GroupStore

    spec = SingleJudgeConfig(name="openai", base_url=url, requests=RequestsConfig(in_flight=in_flight))
    judge = OpenAIJudge(spec, folder / "requests")
    group = GroupStore(folder).read("g0")
    with Progress("bench") as progress:
        names = [str(n) for n in range(1, groups + 1)]
        for line in judged_lines(
            judge, names, lambda name: {"status": judge.score_again(group, int(name)).status}, progress
        ):
            assert line["status"] == "scored", line
    judge.close()
    print(peak_megabytes())


def peak_megabytes() -> float:
    """Peak resident memory of this very program: `ru_maxrss` would start from that of the process that began it."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")) / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the group and result.json")
    parser.add_argument("--picture", type=Path, help="a first frame to make the videos from")
    parser.add_argument("--groups", type=int, default=56, help="requests of the memory measurement")
    parser.add_argument("--in-flight", type=int, default=28)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.out, arguments.worker, arguments.groups, arguments.in_flight)
        return
    if not (arguments.out / "g0" / "group.json").is_file():
        write_group(arguments.out, arguments.picture)
    result = {
        "payload": payload_seconds(arguments.out),
        "in_flight": in_flight_memory(arguments.out, arguments.groups, arguments.in_flight),
    }
    (arguments.out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
