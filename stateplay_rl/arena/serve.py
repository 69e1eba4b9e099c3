"""The referee as an OpenAI-compatible server on the loopback interface.

    python -m stateplay_rl.arena.serve --port 0

It receives the very request that an API judge would get, finds the candidates in the pictures and answers in the
judge's JSON. Noise, position bias, refusals, timeouts, broken and malformed answers come on demand. When it is ready
it prints one line, ``serving http://127.0.0.1:PORT/v1``. Its log names every request by the hash of its bytes, and
never a header: keys do not reach it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer

from stateplay_rl.arena.judge_request import SeenRequest, read_request, referee_scores
from stateplay_rl.arena.serve_faults import MALFORMED, Fault, FaultPlan, good_content, malformed_message
from stateplay_rl.errors import EXIT_OUTSIDE, SprlError
from stateplay_rl.stores.atomic import sha256_bytes, write_text
from stateplay_rl.stores.foreign import parse_json

HOST = "127.0.0.1"
_MOST_BODY_BYTES = 256 << 20
_PIXELS_PER_TOKEN = 32 * 32
_PARENT_POLL_SECONDS = 0.2
_BACKLOG = 256


@dataclass
class ServerLog:
    """What happened to every request, as JSON lines and as counts."""

    path: Path | None = None
    counts: Counter[str] = field(default_factory=Counter)
    arrivals: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def arrived(self, body_sha256: str) -> int:
        """Count a request; returns how often these bytes came before."""
        with self._lock:
            number = self.arrivals[body_sha256]
            self.arrivals[body_sha256] += 1
        self.write(event="arrived", body_sha256=body_sha256, arrival=number)
        return number

    def write(self, **fields: object) -> None:
        """Add a line."""
        with self._lock:
            self.counts[str(fields.get("outcome", fields["event"]))] += 1
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"unix": round(time.time(), 4), **fields}) + "\n")


class JudgeServer(ThreadingHTTPServer):
    """The server; ``server_address[1]`` is its port.

    Args:
        port: 0 takes a free one.
        plan: faults, noise and delays.
        model: the name that answers carry; None: the name that was asked for.
        log: where requests are recorded.
    """

    daemon_threads = True
    request_queue_size = _BACKLOG

    def __init__(self, port: int = 0, plan: FaultPlan | None = None, model: str | None = None, log: Path | None = None):
        super().__init__((HOST, port), _Handler)
        self.plan = plan or FaultPlan()
        self.model = model
        self.log = ServerLog(log)

    @property
    def base_url(self) -> str:
        """What a client is given as `base_url`."""
        return f"http://{HOST}:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no error of the server's."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: JudgeServer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr: the log file says it all."""

    def do_GET(self) -> None:
        """The list of models, as clients ask for it to see whether the server is there."""
        if self.path.rstrip("/").endswith("/models"):
            name = self.server.model or "arena-referee"
            self._send(200, {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "arena"}]})
        else:
            self._send(404, _error("not found"))

    def do_POST(self) -> None:
        """One chat completion, or the fault that this request meets."""
        started = time.monotonic()
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= _MOST_BODY_BYTES:
            self._send(411, _error("a Content-Length is needed"))
            return
        body = self.rfile.read(length)
        if len(body) < length:
            return
        if not self.path.rstrip("/").endswith("/chat/completions"):
            self._send(404, _error("only /v1/chat/completions is served"))
            return
        sha256 = sha256_bytes(body)
        arrival = self.server.log.arrived(sha256)
        fault = self.server.plan.fault(sha256, arrival)
        outcome = "client_gone"
        try:
            outcome = self._answer(body, sha256, arrival, fault)
        finally:
            seconds = round(time.monotonic() - started, 4)
            self.server.log.write(event="ended", body_sha256=sha256, arrival=arrival, outcome=outcome, seconds=seconds)

    def _answer(self, body: bytes, sha256: str, arrival: int, fault: Fault) -> str:
        """Answer with or without the fault; returns the outcome for the log."""
        plan = self.server.plan
        if fault == "rate_limit":
            self._send(429, _error("slow down"), {"Retry-After": f"{plan.retry_after:g}"})
            return "rate_limit"
        if fault == "error":
            self._send(500, _error("internal error"))
            return "error"
        try:
            request = read_request(parse_json(body))
            scores = plan.bent(referee_scores(request), sha256, arrival)
        except (ValueError, SprlError) as error:
            what = error.what if isinstance(error, SprlError) else str(error)
            self._send(400, _error(what))
            return "bad_request"
        time.sleep(plan.hang if fault == "timeout" else plan.delay)
        kind = MALFORMED[int(plan.uniform(sha256, arrival, "kind") * len(MALFORMED))]
        message, finish = (
            malformed_message(kind, scores)
            if fault == "malformed"
            else ({"role": "assistant", "content": good_content(scores)}, "stop")
        )
        model = self.server.model or request.model
        completion = _completion(
            request, message, finish, f"other-{model}" if fault == "wrong_model" else model, sha256
        )
        if fault == "reset":
            self._send_half(completion)
            return "reset"
        self._send(200, completion)
        return "completed" if fault == "none" else fault

    def _send(self, status: int, value: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def _send_half(self, value: Mapping[str, Any]) -> None:
        """Half of the body, then a reset of the connection."""
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        # Linger 0: closing sends RST in the place of an orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def _error(text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": "arena", "code": None}}


def _completion(
    request: SeenRequest, message: Mapping[str, object], finish: str, model: str, sha256: str
) -> dict[str, Any]:
    prompt_tokens = request.text_characters // 4 + request.pixels // _PIXELS_PER_TOKEN
    answer_tokens = len(str(message.get("content"))) // 4 + 1
    return {
        "id": f"chatcmpl-{sha256[:24]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": dict(message), "finish_reason": finish}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": answer_tokens,
            "total_tokens": prompt_tokens + answer_tokens,
        },
    }


def parse_bias(text: str) -> tuple[float, ...]:
    """Points per place from ``5,0,0,-5``.

    Raises:
        typer.BadParameter: not numbers.
    """
    try:
        return tuple(float(part) for part in text.split(",")) if text.strip() else ()
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 5,0,0,-5") from error


def _bound(port: int, plan: FaultPlan, model: str | None, log: Path | None) -> JudgeServer:
    """The server on its port; a port that is in use ends the process with a message."""
    try:
        return JudgeServer(port, plan, model, log)
    except OSError as error:
        print(f"error: port {port} cannot be used: {error.strerror}\n  -> --port 0 takes a free one", file=sys.stderr)
        raise typer.Exit(EXIT_OUTSIDE) from error


def _end_with(server: JudgeServer, parent: int) -> None:
    """A parent that was killed cannot end its server: orphans have another parent."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_SECONDS)
    server.shutdown()


Share = Annotated[float, typer.Option(min=0, max=1)]


def main(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
    port_file: Annotated[Path | None, typer.Option(help="Also write the port to this file, once ready.")] = None,
    log: Annotated[Path | None, typer.Option(help="JSON lines: what happened to every request.")] = None,
    model: Annotated[str | None, typer.Option(help="Name in the answers; left out: the one asked for.")] = None,
    delay: Annotated[float, typer.Option(min=0, help="Seconds that an answer takes.")] = 0.0,
    noise: Annotated[float, typer.Option(min=0, help="Deviation of noise per candidate, points.")] = 0.0,
    request_noise: Annotated[float, typer.Option(min=0, help="Deviation of one offset per answer, points.")] = 0.0,
    position_bias: Annotated[str, typer.Option(help="Points by place, as in 5,0,0,-5.")] = "",
    low: Annotated[float, typer.Option(min=0, max=100, help="Where the referee's 0 is mapped to.")] = 0.0,
    high: Annotated[float, typer.Option(min=0, max=100, help="Where the referee's 100 is mapped to.")] = 100.0,
    rate_limit: Share = 0.0,
    retry_after: Annotated[float, typer.Option(min=0, help="Seconds in the Retry-After of a 429.")] = 1.0,
    error: Share = 0.0,
    timeout: Share = 0.0,
    hang: Annotated[float, typer.Option(min=0, help="Seconds that a request with a timeout is held.")] = 60.0,
    reset: Share = 0.0,
    malformed: Share = 0.0,
    wrong_model: Share = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0,
    with_parent: Annotated[bool, typer.Option(help="End when the process that started it has ended.")] = False,
) -> None:
    """Serve the referee as an OpenAI-compatible judge on the loopback interface."""
    plan = FaultPlan(
        seed=seed,
        rate_limit=rate_limit,
        error=error,
        timeout=timeout,
        reset=reset,
        malformed=malformed,
        wrong_model=wrong_model,
        retry_after=retry_after,
        hang=hang,
        delay=delay,
        noise=noise,
        request_noise=request_noise,
        position_bias=parse_bias(position_bias),
        low=low,
        high=high,
    )
    server = _bound(port, plan, model, log)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    if with_parent:
        threading.Thread(target=_end_with, args=(server, os.getppid()), daemon=True).start()
    if port_file is not None:
        write_text(port_file, f"{server.server_address[1]}\n")
    print(f"serving {server.base_url}", flush=True)
    try:
        server.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


if __name__ == "__main__":
    typer.run(main)
