"""Ask about one group, and pay once.

The order of events is what makes it safe: intent on the disk, bytes leave, answer on the disk, answer used. After a
crash in between the attempt is *in doubt*: listed, priced as paid, and never sent again unless that is asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from stateplay_rl.config.judging import PriceConfig, RequestsConfig
from stateplay_rl.errors import OutsideError
from stateplay_rl.judges.answers import read_answer, usage_of
from stateplay_rl.judges.budget import Budget, price_of
from stateplay_rl.judges.http_client import ChatClient, HttpResult
from stateplay_rl.judges.parsing import ParsedAnswer
from stateplay_rl.judges.patience import Patience
from stateplay_rl.judges.payload import Payload
from stateplay_rl.judges.remote import StoppedError
from stateplay_rl.judges.request_body import RequestBody
from stateplay_rl.stores.attempts import Attempt, AttemptEnd, Intent
from stateplay_rl.stores.requests import RequestStore

MOST_ANSWERS = 2
"""A failed answer is asked once more, then the group has failed."""
_OTHERS_POLL_SECONDS = 0.5


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


@dataclass
class _Progress:
    """How far one call has come.

    Args:
        answers_before: complete answers of the endpoint before it.
        tries: refused attempts of this call.
        paid: attempts of this call that were or may have been billed.
        own: ids of this call's attempts.
    """

    answers_before: int
    tries: int = 0
    paid: int = 0
    own: list[str] = field(default_factory=list)


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

    @property
    def trouble(self) -> str | None:
        """Why the endpoint has answered nothing for a while, if so."""
        return self._patience.trouble

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
            state = _Progress(self._patience.answers)
            body = RequestBody(payload, lambda sha256: self._store.image_file(sha256).read_bytes())
            while True:
                known = self._wait_for_others(payload.key)
                asked = self._from_store(payload, known, state)
                if asked is None:
                    asked = self._try(body, payload, intent, len(known), state)
                if asked is not None:
                    return asked

    def _wait_for_others(self, key: str) -> tuple[Attempt, ...]:
        """All attempts, once no other process is at this very request; one that does not end counts as in doubt."""
        deadline = time.monotonic() + 2 * self._limits.request_seconds
        while True:
            known = self._store.attempts(key)
            if not any(attempt.state == "sent" for attempt in known):
                return known
            if not any(self._store.is_being_sent(attempt) for attempt in known):
                self._store.find_orphans()
            elif time.monotonic() > deadline:
                return known
            elif self._stop.wait(_OTHERS_POLL_SECONDS):
                raise StoppedError("stopped while another process asked the same", "run again with --resume")

    def _from_store(self, payload: Payload, known: Sequence[Attempt], state: _Progress) -> Asked | None:
        """What the store can say; None when the request has to be sent."""
        answered = [attempt for attempt in known if attempt.state == "answered"]
        reason, request_id = "", None
        for attempt in answered:
            text = str(self._store.raw(attempt.request_id)["answer"])
            completion, answer, reason = read_answer(text, payload, self._rules.model)
            request_id = attempt.request_id
            if answer is not None:
                return Asked("scored", None, request_id, answer, completion, state.paid)
        if len(answered) >= MOST_ANSWERS:
            return Asked("failed", reason, request_id, paid=state.paid)
        doubts = [attempt for attempt in known if attempt.state in ("in_doubt", "sent")]
        # What this very call has put in doubt is not sent again even when old doubts are.
        if doubts and (not self._rules.resend_in_doubt or doubts[-1].request_id in state.own):
            last = doubts[-1]
            return Asked("in_doubt", last.reason or "elsewhere: another process is at it", last.request_id)
        return None

    def _try(self, body: RequestBody, payload: Payload, intent: Intent, known: int, state: _Progress) -> Asked | None:
        """One attempt; None when the store, or another attempt, has to decide."""
        result = self._attempt(body, payload, intent, known, state)
        if result is None:
            return None
        if result.kind != "rejected":
            state.paid += 1
            if result.kind == "answered":
                self._patience.answered(read_answer(result.text, payload, self._rules.model)[2] or None)
            else:
                self._patience.doubtful(result.reason)
            return None
        state.tries += 1
        self._raise_when_for_all(result)
        others_answered = self._patience.answers > state.answers_before
        if not result.retryable or (state.tries >= self._limits.tries_per_group and others_answered):
            return Asked("failed", result.reason, state.own[-1], paid=state.paid)
        self._patience.refused(result.reason)
        if self._stop.wait(self._patience.wait(state.tries, result.retry_after_seconds)):
            raise StoppedError(f"stopped while group {intent.group_id} waited to be asked again", "use --resume")
        return None

    def _attempt(
        self, body: RequestBody, payload: Payload, intent: Intent, known: int, state: _Progress
    ) -> HttpResult | None:
        """One attempt, recorded before and after; None when another process was faster."""
        most = price_of(self._rules.price, intent.estimated_input_tokens, self._rules.most_output_tokens)
        with self._slot():
            held = self.budget.reserve(most)
            request_id = self._store.begin(intent, known)
            if request_id is None:
                self.budget.settle(held, 0.0, billed=False)
                return None
            state.own.append(request_id)
            body.started = False
            started = time.monotonic()
            result = self._client.send(body)
            seconds = time.monotonic() - started
        end = self._end(result, payload, most, seconds)
        raw = self._raw(request_id, payload, intent, result) if result.kind == "answered" else None
        self._store.end(request_id, end, raw)
        self.budget.settle(held, end.cost, billed=result.kind != "rejected")
        return result

    def _end(self, result: HttpResult, payload: Payload, most: float | None, seconds: float) -> AttemptEnd:
        """How an attempt ended: what could not be counted is priced as the most that it may have cost."""
        completion: Mapping[str, Any] = {}
        reason, cost = result.reason, 0.0 if result.kind == "rejected" else most
        usage: tuple[int | None, int | None] = (None, None)
        if result.kind == "answered":
            completion, _, reason = read_answer(result.text, payload, self._rules.model)
            usage = usage_of(completion)
            counted = price_of(self._rules.price, *usage)
            cost = most if counted is None else counted
        model = completion.get("model")
        return AttemptEnd(
            state=result.kind,
            reason=reason or None,
            http_status=result.status,
            latency_seconds=round(seconds, 4),
            input_tokens=usage[0],
            output_tokens=usage[1],
            cost=cost,
            answered_model=model if isinstance(model, str) else None,
        )

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
