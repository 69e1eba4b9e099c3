"""The judge behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.judging import RequestsConfig
from stateplay_rl.config.score import SingleJudgeConfig
from stateplay_rl.judges.asking import Asked, Asker, AskingRules
from stateplay_rl.judges.base import GroupVerdict, failed, scored
from stateplay_rl.judges.http_client import ChatClient
from stateplay_rl.judges.payload import KeepImage, Payload, RequestFields, UnfitGroupError, build_payload
from stateplay_rl.judges.protocol import JudgingProtocol, shuffled_order
from stateplay_rl.judges.remote import RemoteJudge, StoppedError
from stateplay_rl.stores.atomic import sha256_json
from stateplay_rl.stores.attempts import Intent
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.requests import RequestStore

SCORE, PROBE = "score", "probe"
_MORE_WORKERS = 0.5
"""Groups beyond those in flight: being built, or waiting to be asked again."""


@dataclass(frozen=True)
class _Opened:
    """What is open while groups are judged.

    Args:
        builders: few threads for all payloads. Each thread that decodes videos keeps tens of megabytes for its next
            allocation; forty of them, one for each group at hand, kept a gigabyte.
    """

    store: RequestStore
    client: ChatClient
    asker: Asker
    builders: ThreadPoolExecutor


class OpenAIJudge(RemoteJudge):
    """Asks a vision-language model; every group once per judge, protocol and content.

    The request store and the client are opened when the first group is judged.

    Args:
        spec: model, endpoint, protocol, limits.
        store_folder: ``requests/``.
        resend_in_doubt: send again what may have been paid already.
    """

    def __init__(self, spec: SingleJudgeConfig, store_folder: Path, *, resend_in_doubt: bool = False) -> None:
        self.spec = spec
        self.store_folder = store_folder
        self.protocol = JudgingProtocol(spec.protocol)
        self.fields = request_fields(spec)
        self.judge_id = f"openai:{spec.model}"
        self.protocol_sha256 = self._hash(self.protocol)
        self.workers = spec.requests.in_flight + spec.requests.builders + round(_MORE_WORKERS * spec.requests.in_flight)
        self.finish_seconds = spec.requests.finish_seconds
        self._resend = resend_in_doubt
        self._opening = threading.Lock()
        self._opened: _Opened | None = None
        self._stopped = False
        self.left_in_doubt: tuple[str, ...] = ()
        """Attempts that a killed process left behind, found when the store was opened."""

    @property
    def limits(self) -> RequestsConfig:
        """How requests are sent."""
        return self.spec.requests

    @property
    def trouble(self) -> str | None:
        """Why the endpoint has answered nothing for a while, if so."""
        opened = self._opened
        return None if opened is None else opened.asker.trouble

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        """Scores in the stored order of the candidates.

        Raises:
            CorruptionError: a video of the group is damaged.
            BudgetReachedError, StoppedError: nothing was sent.
            OutsideError: the endpoint is down, or refuses the key.
        """
        count = group.record.candidates
        order = shuffled_order(group.record.group_id, count, self.protocol.config.shuffle_seed)
        return self._judge(group, order, SCORE, 0, self.protocol)

    def score_again(self, group: StoredGroup, repeat: int, *, other_prompt: bool = False) -> GroupVerdict:
        """Without a shuffle: the probe sets the order itself."""
        protocol = self.protocol
        if other_prompt:
            flipped = {"include_prompt": not protocol.config.include_prompt}
            protocol = JudgingProtocol(protocol.config.model_copy(update=flipped))
        return self._judge(group, range(group.record.candidates), PROBE, repeat, protocol)

    def preview(self, group: StoredGroup, keep_image: KeepImage) -> Payload:
        """The very request that `score_group` would send."""
        count = group.record.candidates
        order = shuffled_order(group.record.group_id, count, self.protocol.config.shuffle_seed)
        return build_payload(group, self.protocol, self.fields, order, keep_image)

    def _hash(self, protocol: JudgingProtocol) -> str:
        return sha256_json({**protocol.facts, "request": self.fields.values})

    def _judge(
        self, group: StoredGroup, order: Sequence[int], purpose: str, repeat: int, protocol: JudgingProtocol
    ) -> GroupVerdict:
        opened = self._open()
        building = opened.builders.submit(
            build_payload, group, protocol, self.fields, order, opened.store.keep_image, repeat=repeat
        )
        try:
            payload = building.result()
        except UnfitGroupError as error:
            return failed(group.record.candidates, error.what)
        except CancelledError as error:
            raise StoppedError("stopped before the request was built", "run again with --resume") from error
        intent = Intent(
            key=payload.key,
            group_id=group.record.group_id,
            judge_id=self.judge_id,
            protocol_sha256=self._hash(protocol),
            model=self.spec.model,
            base_url=self.spec.base_url,
            images=tuple(image.sha256 for image in payload.images),
            purpose=purpose,
            estimated_input_tokens=payload.estimated_input_tokens(),
        )
        return _verdict(opened.asker.ask(payload, intent), payload)

    def require_ready(self) -> None:
        """The key is there."""
        ChatClient(self.spec.base_url, self.spec.api_key_env, self.limits).close()

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True
        if self._opened is not None:
            self._opened.asker.stop()

    def abandon(self) -> tuple[str, ...]:
        """Mark what is in flight as in doubt."""
        if self._opened is None:
            return ()
        return self._opened.store.mark_open_as_in_doubt("interrupted: before the answer was complete")

    def close(self) -> None:
        """Close store and connections; the next group opens them again."""
        with self._opening:
            if self._opened is not None:
                opened, self._opened = self._opened, None
                opened.builders.shutdown(wait=False, cancel_futures=True)
                opened.client.close()
                opened.store.close()

    def _open(self) -> _Opened:
        with self._opening:
            if self._opened is None:
                client = ChatClient(self.spec.base_url, self.spec.api_key_env, self.limits)
                store = RequestStore(self.store_folder)
                self.left_in_doubt += store.left_in_doubt
                rules = AskingRules(
                    model=self.spec.model,
                    base_url=self.spec.base_url,
                    price=self.limits.prices.get(self.spec.model),
                    most_output_tokens=self.spec.api.max_output_tokens,
                    resend_in_doubt=self._resend,
                )
                asker = Asker(store, client, self.limits, rules)
                if self._stopped:
                    asker.stop()
                builders = ThreadPoolExecutor(self.limits.builders, thread_name_prefix="payload")
                self._opened = _Opened(store, client, asker, builders)
            return self._opened


def request_fields(spec: SingleJudgeConfig) -> RequestFields:
    """What stands in the request beside the messages."""
    values: dict[str, Any] = {"model": spec.model, spec.api.output_limit_field: spec.api.max_output_tokens}
    if spec.api.temperature is not None:
        values["temperature"] = spec.api.temperature
    if spec.api.json_mode:
        values["response_format"] = {"type": "json_object"}
    return RequestFields(values)


def _verdict(asked: Asked, payload: Payload) -> GroupVerdict:
    """Scores and evidence brought back into the stored order."""
    details: dict[str, Any] = {"labels": list(payload.labels), "order": list(payload.order)}
    label_of = dict(zip(payload.order, payload.labels, strict=True))
    if asked.answer is None:
        verdict = failed(len(payload.order), asked.reason or asked.status, request_id=asked.request_id, details=details)
        return GroupVerdict(verdict.scores, asked.status, verdict.reason, asked.request_id, details)
    evidence = payload.undo(dict(asked.answer.evidence))
    details |= {
        "field": asked.answer.field,
        "model": (asked.completion or {}).get("model"),
        "candidates": [
            {"label": label_of[k]} | ({"evidence": text} if text else {}) for k, text in enumerate(evidence)
        ],
    }
    return scored(payload.undo(dict(asked.answer.scores)), request_id=asked.request_id, details=details)
