"""One attempt at one request over the `openai` package, with its own retries off.

What matters is to know, after anything went wrong, whether the request may have been answered and billed.
"""

from __future__ import annotations

import email.utils
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from stateplay_rl.config.judging import RequestsConfig
from stateplay_rl.errors import UsageError
from stateplay_rl.judges.request_body import RequestBody

if TYPE_CHECKING:
    import openai

ResultKind = Literal["answered", "rejected", "in_doubt"]
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_NO_KEY = "none-needed"
_RETRIED = frozenset({408, 409, 429})
_CERTAINLY_NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"})
"""Error classes of the HTTP library that come before a request's first byte."""
_HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "h11")
_MOST_ANSWER_BYTES = 4 << 20
_MOST_DETAIL = 300
_OUT_OF_CREDIT = ("insufficient_quota", "billing_hard_limit", "exceeded your current quota")


@dataclass(frozen=True)
class HttpResult:
    """What came of one attempt.

    Args:
        kind: as the states of `stores.requests`.
        reason: code and detail when there is no answer; holds no key.
        status: HTTP status, None when none was received.
        text: whole body of an answer with status 200; holds no key.
        retry_after_seconds: as the server asked.
        retryable: it is worth trying again.
        for_all: the trouble is not this request's own: a key, a quota, a URL.
    """

    kind: ResultKind
    reason: str = ""
    status: int | None = None
    text: str = ""
    retry_after_seconds: float | None = None
    retryable: bool = False
    for_all: bool = False


class ChatClient:
    """Sends chat completions to one endpoint; used by many threads.

    Args:
        base_url: endpoint.
        api_key_env: environment variable that holds the key.
        limits: time limits.

    Raises:
        UsageError: no key, and the endpoint is not on this machine; or one that no header can hold.
    """

    def __init__(self, base_url: str, api_key_env: str, limits: RequestsConfig) -> None:
        import openai

        self._limits = limits
        host = urlsplit(base_url).hostname or ""
        self._key = os.environ.get(api_key_env, "").strip()
        self._key_name = api_key_env
        if not self._key and host not in _LOOPBACK:
            raise UsageError(
                f"the environment variable {api_key_env} is not set, {host} needs a key",
                f"export {api_key_env}=..., or name another variable with --api-key-env; judges without a key: --judge "
                "referee (arena), replay, student, or a plug-in",
            )
        if not (self._key.isascii() and self._key.isprintable()):
            raise UsageError(
                f"the value of the environment variable {api_key_env} cannot be a key: it holds odd characters",
                "export it again, without quotes, spaces or line ends inside",
            )
        self._seen = threading.local()
        timeout = openai.Timeout(
            connect=limits.connect_seconds, read=limits.read_seconds, write=limits.read_seconds, pool=None
        )
        # A proxy of the environment is never asked for an address of this machine. A redirect would send the
        # request a second time.
        http_client = openai.DefaultHttpxClient(
            timeout=timeout,
            follow_redirects=False,
            trust_env=host not in _LOOPBACK,
            event_hooks={"response": [self._note_status]},
        )
        self._client: openai.OpenAI = openai.OpenAI(
            api_key=self._key or _NO_KEY,
            base_url=base_url,
            organization=None,
            max_retries=0,
            timeout=timeout,
            http_client=http_client,
        )

    def send(self, body: RequestBody) -> HttpResult:
        """Send once. Never raises for what the network or the server does."""
        import openai

        self._seen.status, self._seen.headers = None, {}
        try:
            text = self._receive(body, time.monotonic() + self._limits.request_seconds)
        except openai.APIStatusError as error:
            return self._refused(error.status_code, error.response.headers, error.response.text)
        except Exception as error:
            if not isinstance(error, openai.OpenAIError | _GaveUp | OSError) and not _of_http_library(error):
                raise
            return self._broken(error, body)
        return HttpResult("answered", status=self._seen.status, text=self.redact(text))

    def _receive(self, body: RequestBody, deadline: float) -> str:
        """Whole body of a good answer. The whole-request limit also stops a server that drips."""
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(body.length),
            # A kept connection that the server closes just now would leave the next request in doubt.
            "Connection": "close",
            # The package's own mark for "hand the answer over unread".
            "X-Stainless-Raw-Response": "stream",
        }
        response: Any = self._client.post(
            "/chat/completions", cast_to=object, content=_until(body, deadline), options={"headers": headers}
        )
        try:
            chunks: list[bytes] = []
            size = 0
            for chunk in response.iter_bytes():
                chunks.append(chunk)
                size += len(chunk)
                if size > _MOST_ANSWER_BYTES:
                    raise _GaveUp(f"an answer of more than {_MOST_ANSWER_BYTES} bytes")
                _check(deadline)
        finally:
            response.close()
        return b"".join(chunks).decode("utf-8", "replace")

    def redact(self, text: str) -> str:
        """Text of the server without the key, which some servers repeat."""
        return text.replace(self._key, f"<{self._key_name}>") if self._key else text

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _note_status(self, response: Any) -> None:
        self._seen.status, self._seen.headers = response.status_code, response.headers

    def _refused(self, status: int, headers: Mapping[str, str], text: str) -> HttpResult:
        """A complete answer that is no completion: certainly not billed."""
        detail = self.redact(" ".join(text.split()))[:_MOST_DETAIL]
        no_credit = status == 402 or any(word in text for word in _OUT_OF_CREDIT)
        return HttpResult(
            "rejected",
            f"http_{status}: {detail}" if detail else f"http_{status}",
            status,
            retry_after_seconds=retry_after(headers, time.time()),
            retryable=(status in _RETRIED or status >= 500) and not no_credit,
            for_all=no_credit or status in (401, 403, 404) or 300 <= status < 400,
        )

    def _broken(self, error: Exception, body: RequestBody) -> HttpResult:
        """No complete answer: harmless only when nothing was sent, or when an error status had come already."""
        cause = error.__cause__ if error.__cause__ is not None else error
        detail = self.redact(f"{type(cause).__name__}: {cause}")[:_MOST_DETAIL]
        status = self._seen.status
        if status is not None and status >= 300:
            return self._refused(status, self._seen.headers, detail)
        if type(cause).__name__ in _CERTAINLY_NOT_SENT and not body.started:
            return HttpResult("rejected", f"no_connection: {detail}", retryable=True)
        return HttpResult("in_doubt", f"no_complete_answer: {detail}", status)


class _GaveUp(Exception):
    """An answer that is too long or too late."""


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise _GaveUp("no complete answer within the whole request's time limit")


def _until(body: RequestBody, deadline: float) -> Iterator[bytes]:
    for chunk in body:
        _check(deadline)
        yield chunk


def _of_http_library(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in _HTTP_LIBRARIES


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the server asks to wait: `Retry-After` in seconds or as a date, or `retry-after-ms`.

    Args:
        headers: of the answer, names in any case.
        now: Unix time, for dates.
    """
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    milliseconds = _number(lower.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = lower.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - now)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
