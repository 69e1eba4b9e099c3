"""A server that does exactly what a test says with the bytes of its connections."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Behaviour = Callable[[socket.socket, bytes], None]


def read_request(connection: socket.socket) -> bytes:
    """Head and body of one HTTP request."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return data
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
    )
    while len(body) < length:
        more = connection.recv(65536)
        if not more:
            break
        body += more
    return head + b"\r\n\r\n" + body


def answer(status: str, body: bytes, headers: str = "", length: int | None = None) -> bytes:
    """An HTTP answer; `length` may lie."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n{headers}\r\n".encode() + body


def reset(connection: socket.socket) -> None:
    """Close with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def send(data: bytes) -> Behaviour:
    return lambda connection, request: connection.sendall(data)


def drip(data: bytes, seconds: float) -> Behaviour:
    def behave(connection: socket.socket, request: bytes) -> None:
        for start in range(len(data)):
            connection.sendall(data[start : start + 1])
            time.sleep(seconds)

    return behave


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[tuple[str, list[bytes]]]:
    """Base URL, and the requests that came."""
    listener = socket.create_server(("127.0.0.1", 0))
    requests: list[bytes] = []
    closing = threading.Event()

    def handle(connection: socket.socket) -> None:
        with connection:
            request = read_request(connection)
            if request:
                requests.append(request)
                try:
                    behaviour(connection, request)
                except OSError:
                    return

    def work() -> None:
        while not closing.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", requests
    finally:
        closing.set()
        listener.close()
