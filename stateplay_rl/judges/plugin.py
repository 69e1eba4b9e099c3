"""Judges from the user's own package: `package.module:Class`.

The name is code that will run, so it is read strictly: dotted Python identifiers only. A path, a traversal
or anything else that an import could be talked into is refused before Python sees it.
"""

from __future__ import annotations

import importlib
import json
import keyword
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stateplay_rl.errors import SprlError, UsageError
from stateplay_rl.judges.base import GroupVerdict, Judge
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.redaction import redact, redact_json

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 256


class PluginJudge:
    """A plug-in behind the judge protocol: its faults become messages that name it.

    Args:
        name: `package.module:Class`.
        judge: the instance.

    Raises:
        UsageError: the instance lacks a part of the protocol.
    """

    def __init__(self, name: str, judge: Any) -> None:
        self._judge = judge
        self._name = name
        self.judge_id = _text_attribute(name, judge, "judge_id")
        self.protocol_sha256 = _text_attribute(name, judge, "protocol_sha256")
        if not _SHA256.fullmatch(self.protocol_sha256):
            raise UsageError(
                f"judge plug-in {name}: protocol_sha256 is {self.protocol_sha256!r}",
                "it must be the 64 hex digits of a sha256 over all that decides the scores",
            )
        if not callable(getattr(judge, "score_group", None)):
            raise UsageError(f"judge plug-in {name} has no method score_group", "see judges/base.py: Judge")

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        """The plug-in's verdict.

        Raises:
            UsageError: the plug-in raised, or returned something that is no verdict.
        """
        try:
            verdict = self._judge.score_group(group)
        except SprlError:
            raise
        except Exception as error:
            raise UsageError(
                f"judge plug-in {self._name} failed on group {group.record.group_id}: {type(error).__name__}: {error}",
                "mend the plug-in and run again with --resume",
            ) from error
        if not isinstance(verdict, GroupVerdict):
            raise UsageError(
                f"judge plug-in {self._name} returned {type(verdict).__name__} for {group.record.group_id}",
                "score_group must return stateplay_rl.judges.base.GroupVerdict",
            )
        try:
            json.dumps(dict(verdict.details), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"judge plug-in {self._name}: details of {group.record.group_id} are not JSON ({error})",
                "details must be plain numbers (no NaN), texts, lists and dictionaries",
            ) from error
        # What a plug-in says is stored: its server may have repeated the key.
        reason = None if verdict.reason is None else redact(str(verdict.reason))
        return replace(verdict, reason=reason, details=redact_json(verdict.details))


def load_plugin(name: str, options: Mapping[str, Any]) -> Judge:
    """Import and construct a plug-in judge.

    Args:
        name: `package.module:Class`, dotted identifiers only.
        options: keyword arguments of the class.

    Raises:
        UsageError: a malformed name, or an import or construction that fails, with what was wrong.
    """
    module_name, class_name = split_name(name)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(
            f"judge plug-in {name}: cannot import {module_name} ({type(error).__name__}: {error})",
            "install the package that holds it into this environment, or correct the name",
        ) from error
    judge_class = getattr(module, class_name, None)
    if not isinstance(judge_class, type):
        raise UsageError(f"judge plug-in {name}: {module_name} has no class {class_name}", "correct the name")
    try:
        judge = judge_class(**options)
    except SprlError:
        raise
    except Exception as error:
        raise UsageError(
            f"judge plug-in {name}: cannot be constructed ({type(error).__name__}: {error})",
            "check judge.options against the class's arguments",
        ) from error
    return PluginJudge(name, judge)


def split_name(name: str) -> tuple[str, str]:
    """Module and class of a plug-in's name.

    Raises:
        UsageError: not of the form `package.module:Class`.
    """
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise UsageError(f"judge {name[:_LONGEST_NAME]!r} is not of the form package.module:Class", _KNOWN)
    module_name, _, class_name = name.partition(":")
    if any(keyword.iskeyword(part) for part in (*module_name.split("."), class_name)):
        raise UsageError(f"judge {name!r}: a Python keyword cannot be a module or a class", _KNOWN)
    return module_name, class_name


_KNOWN = "judges: referee, replay, mix, openai, student, or a plug-in package.module:Class"


def _text_attribute(name: str, judge: Any, attribute: str) -> str:
    value = getattr(judge, attribute, None)
    if not isinstance(value, str) or not value:
        raise UsageError(f"judge plug-in {name} has no text attribute {attribute!r}", "see judges/base.py: Judge")
    return value
