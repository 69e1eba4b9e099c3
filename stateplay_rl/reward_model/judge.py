"""The judge `student`: scores groups in-process with the adapter of a reward_model directory."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path

from stateplay_rl.errors import InputError
from stateplay_rl.judges.base import GroupVerdict, failed, scored
from stateplay_rl.reward_model.lora import save_adapter
from stateplay_rl.reward_model.parking import ParkedModel
from stateplay_rl.reward_model.payload import build_from_group
from stateplay_rl.reward_model.student import Student, StudentFacts, adapter_sha256, protocol_of
from stateplay_rl.runtime import pick_device
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.sealed import read_checked, read_manifest

TOO_LONG = "too_long"
"""Reason code of a group that does not fit into the student's context; it is never cut."""


class StudentJudge:
    """Judges as the API judge was seen to judge. The model is loaded when the first group comes.

    Whether it may be trusted is the gate's matter, not this class's: stage C asks the gate.

    Args:
        folder: a sealed reward_model directory.
        base: where the base model lies now; None takes the recorded place.
        device: None takes a GPU when there is one.
        wait_on_host: between groups the weights wait in host memory and leave the card to the world model.

    Raises:
        UnsealedError, InputError, CorruptionError: the directory is unfinished, foreign or damaged.
        CheckError: this sprl would show other things than the student learned from.
    """

    judge_id = "student"

    def __init__(
        self, folder: Path, *, base: str | Path | None = None, device: str | None = None, wait_on_host: bool = False
    ) -> None:
        manifest = read_manifest(folder, schema="reward_model", verify_files=True)
        self.folder = folder
        self.facts = StudentFacts.read(folder, read_checked(manifest, layout.STUDENT))
        self.protocol = protocol_of(self.facts, folder)
        self.adapter_sha256 = adapter_sha256(folder / layout.ADAPTER_FOLDER)
        self.protocol_sha256 = self.facts.judge_protocol_sha256(self.adapter_sha256)
        self._base, self._device, self._wait_on_host = base, device, wait_on_host
        # One model, one group at a time: background threads may ask together.
        self._lock = threading.Lock()
        self._student: Student | None = None
        self._parked: ParkedModel | None = None

    def score_group(self, group: StoredGroup) -> GroupVerdict:
        """The student's verdict; an answer that does not parse is a failure with the parser's reason.

        Raises:
            CorruptionError: a picture or video of the group is damaged.
            InputError: the group has another number of candidates than those that the student learned from.
        """
        count = group.record.candidates
        self.require_candidates(count, f"group {group.record.group_id} has")
        payload = build_from_group(group, self.protocol)
        with self._lock:
            student = self._loaded()
            try:
                student.require_length(group.record.group_id, payload, self.facts.max_length)
            except InputError as error:
                return failed(count, f"{TOO_LONG}: {error.what}")
            with nullcontext() if self._parked is None else self._parked.on_device():
                answer = student.score(payload, self.facts.reading)
        details = {
            "answer": answer.text,
            "order": list(payload.order),
            "reading": self.facts.reading,
            "legal_mass": answer.legal_mass,
        }
        if answer.scores is None:
            return failed(count, answer.reason or "unparsed", details=details)
        return scored(payload.by_candidate(answer.scores), details=details)

    def require_candidates(
        self, count: int, what: str, hint: str = "roll out as many, or train a student on such groups"
    ) -> None:
        """Raise unless the student learned from groups of so many candidates: its scores of others mean nothing.

        Args:
            what: who asks, for the message: `heldout.samples is`.

        Raises:
            InputError: it did not.
        """
        known = self.facts.candidates
        if count not in known:
            raise InputError(
                f"{what} {count} candidates; the student of {self.folder} learned from groups of "
                f"{' or '.join(map(str, known))} only",
                hint,
            )

    def save_and_reload(self, folder: Path) -> None:
        """Write the adapter as it is in memory, and go on with the student that is read back from there.

        Args:
            folder: new; gets the adapter and nothing else.

        Raises:
            InputError, CorruptionError: what was written does not read back.
        """
        with self._lock:
            save_adapter(self._loaded().model, folder / layout.ADAPTER_FOLDER, self.facts.base)
            self._student = self._parked = None  # before the next one takes memory
            self._loaded(folder)

    def _loaded(self, folder: Path | None = None) -> Student:
        if self._student is None:
            device = pick_device(self._device)
            base = self.facts.base_folder(self.folder) if self._base is None else self._base
            self._student = Student.load(
                folder or self.folder, self.facts, device=device, base=base, stays=not self._wait_on_host
            )
            if self._wait_on_host:
                self._parked = ParkedModel(self._student.model, device)
        return self._student
