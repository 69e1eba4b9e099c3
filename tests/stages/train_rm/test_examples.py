"""Examples: stored requests come first, their judge's protocol is taken, and what began a training stays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stateplay_rl.config.base import FrozenConfig
from stateplay_rl.config.judging import ProtocolConfig
from stateplay_rl.config.train_rm import TrainRmConfig
from stateplay_rl.errors import CorruptionError, InputError, UsageError
from stateplay_rl.judges import payload as requests
from stateplay_rl.judges.protocol import JudgingProtocol
from stateplay_rl.reward_model.payload import ImagePart, build_from_group
from stateplay_rl.stages.train_rm.examples import ExampleInputs, read_examples
from stateplay_rl.stores import layout
from stateplay_rl.stores.groups import GroupStore
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.stores.scores import ScoreRow, ScoreTable
from tests.reward_model.arena_groups import SHOWN, Inputs, write_inputs

SPLITS = ("train", "train", "validation", "test")
ORDER = (3, 1, 0, 2)


class PaidConfig(FrozenConfig):
    """What a `scores/` of the paid judge records of its settings, as far as train-rm reads it."""

    judge: dict[str, Any]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return write_inputs(tmp_path_factory.mktemp("inputs"), SPLITS)


def paid(inputs: Inputs, root: Path, *, store: bool = True) -> Path:
    """Scores of the same groups by a paid judge, its requests beside them."""
    protocol = ProtocolConfig(frames=SHOWN, include_prompt=False)
    folder = root / layout.REQUESTS_FOLDER
    rows = []
    for name in GroupStore(inputs.groups).finished():
        request = f"{name}-1"
        rows += [ScoreRow(name, k, 10.0 * k + 0.5, "scored", None, "openai:m", "p" * 64, request) for k in range(4)]
        if store:
            _write_request(inputs, folder, name, request, JudgingProtocol(protocol))
    config = PaidConfig(judge={"name": "openai", "protocol": protocol.model_dump(mode="json")})
    out = root / "scores"
    with OutputDirectory.open(
        out,
        schema="scores",
        version=1,
        command="score",
        config=config,
        inputs={"groups": inputs.groups},
        resume=False,
        overwrite=False,
    ) as output:
        ScoreTable(rows).write(out / layout.SCORES)
        output.seal()
    return out


def _write_request(inputs: Inputs, folder: Path, name: str, request: str, protocol: JudgingProtocol) -> None:
    images, raw = folder / layout.REQUEST_IMAGES_FOLDER, folder / layout.REQUEST_RAW_FOLDER
    images.mkdir(parents=True, exist_ok=True)
    raw.mkdir(exist_ok=True)

    def keep(jpeg: bytes) -> str:
        part = ImagePart.of(jpeg)
        (images / f"{part.sha256}.jpg").write_bytes(jpeg)
        return part.sha256

    group = GroupStore(inputs.groups).read(name)
    built = requests.build_payload(group, protocol, requests.RequestFields({}), ORDER, keep)
    value: Mapping[str, Any] = {
        "group_id": name,
        "labels": list(built.labels),
        "order": list(built.order),
        "request": built.body,
        "answer": "{}",
    }
    (raw / f"{request}.json").write_text(json.dumps(value))


def test_a_paid_judges_requests_are_learnt_from_as_they_were_sent(inputs: Inputs, tmp_path: Path) -> None:
    scores = paid(inputs, tmp_path)
    examples = read_examples(TrainRmConfig(), ExampleInputs(inputs.groups, scores, None))
    assert examples.requests == tmp_path / layout.REQUESTS_FOLDER
    assert examples.protocol.config.include_prompt is False
    for example in examples.items:
        payload = examples.payload(example)
        assert payload.order == ORDER
        assert example.targets == (0, 10, 20, 30)
        group = GroupStore(inputs.groups).read(example.group_id)
        assert payload == build_from_group(group, examples.protocol, ORDER)
        assert examples.payload(example, (0, 1, 2, 3)).order == (0, 1, 2, 3)


def test_requests_without_a_store_are_refused(inputs: Inputs, tmp_path: Path) -> None:
    scores = paid(inputs, tmp_path, store=False)
    with pytest.raises(InputError, match="no request store"):
        read_examples(TrainRmConfig(), ExampleInputs(inputs.groups, scores, None))
    with pytest.raises(InputError, match="no request store"):
        read_examples(TrainRmConfig(requests=tmp_path / "no"), ExampleInputs(inputs.groups, scores, None))


def test_another_protocol_than_the_judges_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    scores = paid(inputs, tmp_path)
    config = TrainRmConfig(protocol=ProtocolConfig(frames=SHOWN))
    with pytest.raises(UsageError, match="protocol"):
        read_examples(config, ExampleInputs(inputs.groups, scores, None))


def test_groups_of_a_judge_in_this_process_are_shown_by_the_setting(inputs: Inputs) -> None:
    config = TrainRmConfig(protocol=ProtocolConfig(frames=SHOWN))
    examples = read_examples(config, ExampleInputs(inputs.groups, inputs.scores, None))
    assert examples.requests is None
    assert [len(examples.of_split(split)) for split in ("train", "validation", "test")] == [2, 1, 1]
    assert len(examples.payload(examples.items[0]).images) == 1 + 5 * SHOWN


def test_a_resumed_training_goes_on_with_what_it_began_with(inputs: Inputs) -> None:
    examples = read_examples(TrainRmConfig(), ExampleInputs(inputs.groups, inputs.scores, None))
    recorded = {item.group_id: item.group_sha256 for item in examples.items[:2]}
    fewer = examples.only(recorded)
    assert {item.group_id for item in fewer.items} == set(recorded)
    assert fewer.sha256() != examples.sha256()
    with pytest.raises(CorruptionError, match="has changed"):
        examples.only({examples.items[0].group_id: "0" * 64})
