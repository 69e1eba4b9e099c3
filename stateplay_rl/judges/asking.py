"""Ask about one group, and pay once.

The order of events is what makes it safe: intent on the disk, bytes leave, answer on the disk, answer used. After a
crash in between the attempt is *in doubt*: listed, priced as paid, and never sent again unless that is asked for.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from stateplay_rl.config.judging import PriceConfig, RequestsConfig
from stateplay_rl.errors import OutsideError, UnparsedAnswer
from stateplay_rl.judges.budget import Budget, price_of
from stateplay_rl.judges.http_client import ChatClient, HttpResult
from stateplay_rl.judges.parsing import ParsedAnswer, parse_answer_with_field
from stateplay_rl.judges.patience import Patience
from stateplay_rl.judges.payload import Payload
from stateplay_rl.judges.remote import StoppedError
from stateplay_rl.judges.request_body import RequestBody
from stateplay_rl.stores.requests import Attempt, AttemptEnd, Intent, RequestStore

MOST_ANSWERS = 2
"""A failed answer is asked once more, then the group has failed."""


@dataclass(frozen=True)
class Asked:
    """What came of a request.

    Args:
        answer: the scores by label, when `status` is `scored`.
        completion: the answer that they stand in.
        request_id: the attempt that decided.
        paid: attempts of this call that were or may have been billed.
    """

    status: Literal["scored", "failed", "in_doubt"]
    reason: str | None
    request_id: str | None
    answer: ParsedAnswer | None = None
    completion: Mapping[str, Any] | None = None
    paid: int = 0


@dataclass(frozen=True)
class AskingRules:
    """How this command asks.

    Args:
        price: of the model; None when the table has none.
        most_output_tokens: for the price of an attempt in doubt.
        resend_in_doubt: send again what may have been paid already.
    """

    model: str
    base_url: str
    price: PriceConfig | None
    most_output_tokens: int
    resend_in_doubt: bool


class Asker:
    """Sends requests through a client, records them in a store; used by many threads."""

    def __init__(self, store: RequestStore, client: ChatClient, limits: RequestsConfig, rules: AskingRules) -> None:
        self._store, self._client, self._limits, self._rules = store, client, limits, rules
        self._slots = threading.BoundedSemaphore(limits.in_flight)
        self._stop = threading.Event()
        self._patience = Patience(limits)
        self.budget = Budget(limits)
        self._keys: dict[str, threading.Lock] = {}
        self._keys_lock = threading.Lock()

    def stop(self) -> None:
        """Send nothing more; waits between tries end at once."""
        self._stop.set()

    def ask(self, payload: Payload, intent: Intent) -> Asked:
        """Scores for one request, from the store when it was answered before.

        Raises:
            BudgetReachedError, StoppedError: not sent.
            OutsideError: the endpoint is down for too long, or refuses the key or the model.
        """
        with self._alone(payload.key):
            known = self._store.attempts(payload.key)
            asked = self._from_store(payload, known)
            return self._send_until_settled(payload, intent, known) if asked is None else asked

    def _from_store(self, payload: Payload, known: Sequence[Attempt]) -> Asked | None:
        """What the store can say; None when the request has to be sent."""
        answered = [attempt for attempt in known if attempt.state == "answered"]
        reason, request_id = "", None
        for attempt in answered:
            text = str(self._store.raw(attempt.request_id)["answer"])
            completion, answer, reason = read_answer(text, payload, self._rules.model)
            request_id = attempt.request_id
            if answer is not None:
                return Asked("scored", None, request_id, answer, completion)
        if len(answered) >= MOST_ANSWERS:
            return Asked("failed", reason, request_id)
        doubts = [attempt for attempt in known if attempt.state == "in_doubt"]
        if doubts and not self._rules.resend_in_doubt:
            return Asked("in_doubt", doubts[-1].reason, doubts[-1].request_id)
        return None

    def _send_until_settled(self, payload: Payload, intent: Intent, known: Sequence[Attempt]) -> Asked:
        body = RequestBody(payload, lambda sha256: self._store.image_file(sha256).read_bytes())
        unread = sum(attempt.state == "answered" for attempt in known)
        tries, answers_before, paid = 0, self._patience.answers, 0
        while True:
            request_id, result, reason, answer, completion = self._attempt(body, payload, intent)
            if result.kind == "in_doubt":
                return Asked("in_doubt", result.reason, request_id, paid=paid + 1)
            if result.kind == "answered":
                paid += 1
                self._patience.answered()
                if answer is not None:
                    return Asked("scored", None, request_id, answer, completion, paid)
                unread += 1
                if unread >= MOST_ANSWERS:
                    return Asked("failed", reason, request_id, paid=paid)
                continue
            tries += 1
            others_answered = self._patience.answers > answers_before
            self._raise_when_for_all(result)
            if not result.retryable or (tries >= self._limits.tries_per_group and others_answered):
                return Asked("failed", result.reason, request_id, paid=paid)
            self._patience.refused(result.reason)
            if self._stop.wait(self._patience.wait(tries, result.retry_after_seconds)):
                raise StoppedError(f"stopped while group {intent.group_id} waited to be asked again", "use --resume")

    def _attempt(
        self, body: RequestBody, payload: Payload, intent: Intent
    ) -> tuple[str, HttpResult, str, ParsedAnswer | None, Mapping[str, Any]]:
        """One attempt, recorded before and after."""
        most = price_of(self._rules.price, intent.estimated_input_tokens, self._rules.most_output_tokens)
        with self._slot():
            held = self.budget.reserve(most)
            request_id = self._store.begin(intent)
            body.started = False
            started = time.monotonic()
            result = self._client.send(body)
            seconds = time.monotonic() - started
        completion: Mapping[str, Any] = {}
        answer, reason, raw = None, result.reason, None
        cost: float | None = 0.0
        usage: tuple[int | None, int | None] = (None, None)
        if result.kind == "answered":
            completion, answer, reason = read_answer(result.text, payload, self._rules.model)
            usage = _usage(completion)
            cost = price_of(self._rules.price, *usage)
            cost = most if cost is None else cost
            raw = self._raw(request_id, payload, intent, result)
        elif result.kind == "in_doubt":
            cost = most
        end = AttemptEnd(
            state=result.kind,
            reason=reason or None,
            http_status=result.status,
            latency_seconds=round(seconds, 4),
            input_tokens=usage[0],
            output_tokens=usage[1],
            cost=cost,
            answered_model=str(completion["model"]) if isinstance(completion.get("model"), str) else None,
        )
        self._store.end(request_id, end, raw)
        self.budget.settle(held, cost, billed=result.kind != "rejected")
        return request_id, result, reason, answer, completion

    def _raw(self, request_id: str, payload: Payload, intent: Intent, result: HttpResult) -> dict[str, Any]:
        return {
            "request_id": request_id,
            "key": payload.key,
            "group_id": intent.group_id,
            "judge_id": intent.judge_id,
            "protocol_sha256": intent.protocol_sha256,
            "base_url": self._rules.base_url,
            "labels": list(payload.labels),
            "order": list(payload.order),
            "request": payload.body,
            "http_status": result.status,
            "answer": result.text,
        }

    def _raise_when_for_all(self, result: HttpResult) -> None:
        """A key, a quota or a URL that is wrong is wrong for every group: do not fail them one by one.

        A 403 or 404 after good answers is this request's own (a moderation layer, a relay's route).
        """
        if result.for_all and (self._patience.answers == 0 or result.status in (401, 402, 429)):
            raise OutsideError(
                f"{self._rules.base_url} refuses all requests for {self._rules.model}: {result.reason}",
                "check the key's variable, its credit, the model's name and judge.base_url, then --resume",
            )

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """One of the places in flight."""
        with self._slots:
            if self._stop.is_set():
                raise StoppedError("stopped before the request was sent", "run again with --resume")
            yield

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Two groups with the very same request ask once."""
        with self._keys_lock:
            lock = self._keys.setdefault(key, threading.Lock())
        with lock:
            yield


def read_answer(text: str, payload: Payload, model: str) -> tuple[Mapping[str, Any], ParsedAnswer | None, str]:
    """A stored or received answer: the completion, its scores or None, and the reason code without scores."""
    completion, choice = _choice(text)
    flat = {
        "message": choice.get("message"),
        "finish_reason": choice.get("finish_reason"),
        "model": completion.get("model"),
    }
    try:
        if not choice:
            raise UnparsedAnswer("no_json", "the answer is no chat completion")
        return completion, parse_answer_with_field(flat, labels=payload.labels, requested_model=model), ""
    except UnparsedAnswer as error:
        return completion, None, f"{error.reason}: {error.detail}" if error.detail else error.reason


def _choice(text: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The completion and its first choice; empty where there is none."""
    try:
        completion = json.loads(text)
    except (ValueError, RecursionError):
        return {}, {}
    if not isinstance(completion, dict):
        return {}, {}
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return completion, {}
    return completion, choices[0]


def _usage(completion: Mapping[str, Any]) -> tuple[int | None, int | None]:
    usage = completion.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    first, second = (n if isinstance(n, int) and not isinstance(n, bool) and n >= 0 else None for n in counts)
    return first, second
