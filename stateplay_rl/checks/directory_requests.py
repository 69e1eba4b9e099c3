"""score -> request: the answers and pictures behind the scores of a paid judge, re-read and re-hashed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from stateplay_rl.checks.directory_facts import SHOWN, Facts
from stateplay_rl.checks.lines import NotChecked
from stateplay_rl.errors import CheckError, CorruptionError
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_file
from stateplay_rl.stores.attempts import Attempt
from stateplay_rl.stores.requests import read_attempts, read_raw
from stateplay_rl.stores.scores import ScoreTable


def has_paid_judge(facts: Facts) -> bool:
    """Whether a scores directory records a judge that pays for requests."""
    return facts.schema == "scores" and facts.manifest is not None and bool(facts.manifest.extra.get("protocols"))


def check_requests(facts: Facts) -> str:
    """Every scored group of a paid judge has its attempt, its raw answer and the pictures that were sent.

    Raises:
        CheckError: a link is broken.
        NotChecked: the request store is not here.
    """
    folders = _stores(facts)
    attempts: dict[str, tuple[Path, Attempt]] = {
        attempt.request_id: (folder, attempt) for folder in folders for attempt in read_attempts(folder)
    }
    problems: list[str] = []
    requests = pictures = 0
    seen: set[str] = set()
    for group in ScoreTable.read(facts.path / layout.SCORES):
        for request_id in (group.rows[0].request_id or "").split("+") if group.complete else ():
            if request_id not in attempts:
                problems.append(f"group {group.group_id}: request {request_id} is in no store")
                continue
            folder, attempt = attempts[request_id]
            requests += 1
            problems += _raw_problems(folder, attempt, group.group_id)
            for sha256 in set(attempt.images) - seen:
                seen.add(sha256)
                pictures += 1
                problems += _picture_problems(folder / layout.request_image_file(sha256), sha256)
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise CheckError("; ".join(problems[:SHOWN]) + more, "restore the request store from a copy")
    return f"{requests} requests with their answers, {pictures} pictures re-hashed"


def _stores(facts: Facts) -> list[Path]:
    assert facts.manifest is not None, "asked for directories with a paid judge only"
    protocols = facts.manifest.extra["protocols"]
    found = sorted({Path(os.path.normpath(facts.path.absolute() / p["requests"])) for p in protocols.values()})
    searched = [place / layout.REQUESTS_FOLDER for place in facts.search]
    here = [folder for folder in found if (folder / layout.REQUESTS).is_file()]
    here = here or [folder for folder in searched if (folder / layout.REQUESTS).is_file()]
    if not here:
        raise NotChecked(f"the request store {', '.join(map(str, found))} is not here: give --search FOLDER")
    return here


def _raw_problems(folder: Path, attempt: Attempt, group_id: str) -> Iterator[str]:
    if attempt.state != "answered" or attempt.reason is not None:
        yield f"group {group_id}: request {attempt.request_id} is {attempt.state} ({attempt.reason}), not a good answer"
    if attempt.group_id != group_id:
        yield f"group {group_id}: request {attempt.request_id} is about group {attempt.group_id}"
    try:
        raw = read_raw(folder, attempt.request_id)
    except CorruptionError as error:
        yield error.what
        return
    if raw.get("request_id") != attempt.request_id or raw.get("key") != attempt.key:
        yield f"{folder / layout.raw_file(attempt.request_id)} is of another request"
    text = json.dumps(raw.get("request"))
    if any(sha256 not in text for sha256 in attempt.images):
        yield f"{folder / layout.raw_file(attempt.request_id)} lacks pictures that the attempt names"


def _picture_problems(file: Path, sha256: str) -> Iterator[str]:
    if not file.is_file():
        yield f"{file} is missing"
    elif sha256_file(file) != sha256:
        yield f"{file} is damaged"
