"""A student ready to score: base, adapter, reading. And the facts about it that stand in ``student.json``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from stateplay_rl.config.judging import ProtocolConfig
from stateplay_rl.errors import CheckError, CorruptionError
from stateplay_rl.judges.protocol import JudgingProtocol
from stateplay_rl.reward_model import lora
from stateplay_rl.reward_model.base_model import ARENA, BaseModel, load_base
from stateplay_rl.reward_model.delta_rule import RuleName
from stateplay_rl.reward_model.fixed_decoder import decoder_of
from stateplay_rl.reward_model.fused import FusedName
from stateplay_rl.reward_model.inputs import GroupReader, Length, refuse_too_long
from stateplay_rl.reward_model.learning import (
    AttentionName,
    Precision,
    attention_kernels,
    half_precision,
    prepare_for_scoring,
    save_memory,
)
from stateplay_rl.reward_model.payload import GroupPayload
from stateplay_rl.reward_model.reading import Reading, StudentAnswer, read_scores
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_file, sha256_json
from stateplay_rl.stores.foreign import parse_json

STUDENT_VERSION = 4
"""Raised whenever the same files would give other scores."""


@dataclass(frozen=True)
class StudentFacts:
    """What decides a student's scores, beside the adapter.

    Args:
        base: `arena`, or the base's folder relative to the reward_model directory.
        base_sha256: hash of the base's files.
        protocol: settings of what is shown.
        protocol_sha256: its hash, prompt and example pictures included.
        reading: how scores are read.
        precision, delta_rule, fused, attention: how it was computed when the gate was passed.
        max_length: longest group in tokens.
        candidates: numbers of candidates of the groups that it learned from; of other groups it knows nothing.
    """

    base: str
    base_sha256: str
    protocol: dict[str, Any]
    protocol_sha256: str
    reading: Reading
    precision: Precision
    delta_rule: RuleName
    fused: FusedName
    attention: AttentionName
    max_length: int
    candidates: tuple[int, ...]

    def judge_protocol_sha256(self, adapter_sha256: str) -> str:
        """Hash of everything that decides the scores of the judge `student`."""
        deciding = {k: v for k, v in asdict(self).items() if k not in ("base", "protocol")}
        return sha256_json({"judge": "student", "version": STUDENT_VERSION, "adapter": adapter_sha256, **deciding})

    def to_json(self) -> dict[str, Any]:
        """Plain values of ``student.json``."""
        return {"version": STUDENT_VERSION, **asdict(self)}

    @classmethod
    def read(cls, folder: Path, data: bytes) -> StudentFacts:
        """Parse ``student.json``.

        Raises:
            CorruptionError: a field is missing or of the wrong type.
        """
        file = folder / layout.STUDENT
        try:
            values: Mapping[str, Any] = parse_json(data)
            fields = {name: values[name] for name in cls.__dataclass_fields__}
            ProtocolConfig.model_validate(fields["protocol"])
            return cls(**{**fields, "candidates": tuple(int(n) for n in fields["candidates"])})
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{file} is damaged: {error!r}", "run sprl train-rm again") from error

    def base_folder(self, folder: Path) -> str | Path:
        """Where the base lies, seen from the reward_model directory."""
        return ARENA if self.base == ARENA else Path(os.path.normpath(folder.absolute() / self.base))


def adapter_sha256(adapter: Path) -> str:
    """Identity of an adapter: names and hashes of its files."""
    return sha256_json({file.name: sha256_file(file) for file in sorted(adapter.iterdir()) if file.is_file()})


class Student:
    """Scores payloads with one adapter.

    Args:
        base: the loaded base model.
        model: the base with its adapter, from `lora.attach` or `lora.load_adapter`.
        reader: makes inputs from payloads.
        precision, attention: as in `StudentFacts`.
        captured: passes of fixed shapes are CUDA graphs.
    """

    def __init__(
        self,
        base: BaseModel,
        model: Any,
        reader: GroupReader,
        precision: Precision,
        attention: AttentionName,
        *,
        captured: bool = False,
    ) -> None:
        self.base, self.model, self.reader = base, model, reader
        self._precision, self._attention = precision, attention
        self._captured = captured
        self._decoder = decoder_of(model, fused=base.fused, captured=captured)

    @classmethod
    def load(
        cls,
        folder: Path,
        facts: StudentFacts,
        *,
        device: torch.device,
        base: str | Path | None = None,
        stays: bool = True,
    ) -> Student:
        """The student of a reward_model directory.

        Args:
            folder: the directory; its `adapter/` must have been checked against the manifest.
            base: where the base lies now; None takes the recorded place.
            stays: the weights stay where they are, so that graphs of passes over them stay valid. The scores are the
                same either way.

        Raises:
            InputError: base or adapter are missing or do not fit.
            CheckError: the base's files are not those that the student was trained on.
        """
        named = facts.base_folder(folder) if base is None else base
        loaded = load_base(named, device=device, precision=facts.precision, rule=facts.delta_rule, fused=facts.fused)
        if loaded.sha256 != facts.base_sha256:
            raise CheckError(
                f"the base in {loaded.folder} ({loaded.sha256[:12]}) is not the one that the student of {folder} was "
                f"trained on ({facts.base_sha256[:12]})",
                "give that base, or train the student again: sprl train-rm",
            )
        model = lora.load_adapter(loaded.model, folder / layout.ADAPTER_FOLDER)
        save_memory(model, fused=loaded.fused)
        captured = stays and may_capture(loaded, facts.precision)
        reader = GroupReader(loaded, captured=captured)
        return cls(loaded, model, reader, facts.precision, facts.attention, captured=captured)

    @torch.no_grad()
    def score(self, payload: GroupPayload, reading: Reading) -> StudentAnswer:
        """Scores in the order of the payload's labels."""
        prepare_for_scoring(self.model)
        with half_precision(self.base.device, self._precision), attention_kernels(self.base.device, self._attention):
            prompt = self.reader.prompt(payload)
            try:
                return read_scores(self._decoder, self.base.chat, self.reader.form(payload.labels), prompt, reading)
            finally:
                if not self._captured:
                    # Without graphs nothing of a group is of use to the next one.
                    self._decoder.release()

    def require_length(self, name: str, payload: GroupPayload, max_length: int) -> Length:
        """Length of a group.

        Raises:
            InputError: it is longer than `max_length`.
        """
        length = self.reader.length(payload)
        refuse_too_long({name: length}, max_length)
        return length


def may_capture(base: BaseModel, precision: Precision) -> bool:
    """Whether passes over this base can be CUDA graphs; 4-bit products unpack their weights as they see fit."""
    return base.fused and precision != "nf4"


def protocol_of(facts: StudentFacts, folder: Path) -> JudgingProtocol:
    """What the student is shown; example pictures are found from the directory.

    Raises:
        CheckError: prompt, settings or example pictures are not those of the training.
    """
    config = ProtocolConfig.model_validate(facts.protocol)
    examples = tuple(Path(os.path.normpath(folder.absolute() / path)) for path in config.example_images)
    protocol = JudgingProtocol(config.model_copy(update={"example_images": examples}))
    if protocol.sha256 != facts.protocol_sha256:
        raise CheckError(
            f"the protocol of this sprl ({protocol.sha256[:12]}) is not the one that the student of {folder} learned "
            f"({facts.protocol_sha256[:12]}): prompt, settings or example pictures differ",
            "train the student again: sprl train-rm",
        )
    return protocol
