"""Fuzzing: pictures, and the results that other commands read: gates, students, labels, requests, evaluations."""

from __future__ import annotations

import io
import json
import shutil
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stateplay_rl.arena.judge_request import read_request as read_at_server
from stateplay_rl.errors import CorruptionError
from stateplay_rl.reporting.json_files import read_object
from stateplay_rl.reporting.label_files import read_labels
from stateplay_rl.reporting.label_set import LabelItem, LabelKey, read_key
from stateplay_rl.reward_model.base_model import refuse_other_families
from stateplay_rl.reward_model.payload import read_request
from stateplay_rl.reward_model.student import StudentFacts
from stateplay_rl.stages.train_nft.permissions import read_gate
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_bytes
from stateplay_rl.stores.foreign import read_object as read_any_object
from stateplay_rl.stores.pictures import LARGEST_PIXELS, decode_picture, read_picture
from stateplay_rl.worlds.native.architecture import read_training_config
from tests.checks.directories import writing
from tests.fuzz.damage import altered, damaged, deep, fuzzed, json_values, reads_or_says_why


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def picture(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(12 * 8 * 3, dtype=np.uint8).reshape(12, 8, 3)).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP"])
def test_pictures(kind: str) -> None:
    @fuzzed
    @given(data=damaged(picture(kind)))
    def check(data: bytes) -> None:
        reads_or_says_why(lambda: decode_picture(data, "it"))

    check()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def test_what_is_no_picture_says_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(b"<html>")
    with pytest.raises(CorruptionError, match=r"p\.png is not a readable picture: no PNG, JPEG"):
        read_picture(tmp_path / "p.png")


@pytest.mark.parametrize("side", [20_000, 2**31 - 1])
def test_a_picture_that_claims_too_much_is_not_decoded(tmp_path: Path, side: int) -> None:
    """Pillow's own refusal of large pictures is no OSError; several readers let it through as a traceback."""
    assert side * side > LARGEST_PIXELS
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")
    (tmp_path / "p.png").write_bytes(data)
    with pytest.raises(CorruptionError, match=r"p\.png"):
        read_picture(tmp_path / "p.png")


GATE = {
    "passed": True,
    "adapter_sha256": "a" * 64,
    "thresholds": {"pairwise_agreement": 0.7, "tie_points": 2},
    "judge_protocol_sha256": "b" * 64,
}


def test_gates(tmp_path: Path) -> None:
    folder = tmp_path / "reward_model"

    @fuzzed
    @given(data=damaged(as_json(GATE)) | altered(GATE).map(as_json))
    def check(data: bytes) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        with writing(folder, "reward_model") as directory:
            (folder / layout.ADAPTER_FOLDER).mkdir()
            (folder / layout.ADAPTER_FOLDER / "adapter_config.json").write_text("{}")
            (folder / layout.GATE).write_bytes(data)
            directory.seal()
        reads_or_says_why(lambda: read_gate(folder, None))

    check()


STUDENT = {
    "base": "arena", "base_sha256": "a", "protocol": {}, "protocol_sha256": "b", "reading": "expected",
    "precision": "float32", "delta_rule": "torch", "attention": "sdpa", "max_length": 100,
}  # fmt: skip


@fuzzed
@given(data=damaged(as_json(STUDENT)) | altered(STUDENT).map(as_json))
def test_student_facts(data: bytes) -> None:
    reads_or_says_why(lambda: StudentFacts.read(Path("r"), data))


MODEL = {"model_type": "qwen3_5", "vision_config": {"depth": 1}}


@fuzzed
@given(data=damaged(as_json(MODEL)) | altered(MODEL).map(as_json) | json_values.map(as_json))
def test_model_configurations(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.json").write_bytes(data)
    reads_or_says_why(lambda: refuse_other_families(tmp_path))


IMAGE = picture("JPEG")
IMAGE_SHA256 = sha256_bytes(IMAGE)
REQUEST = {
    "group_id": "g",
    "labels": ["A", "B"],
    "order": [0, 1],
    "request": {
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "Candidate A"},
                {"type": "image_url", "image_url": {"url": f"sha256:{IMAGE_SHA256}"}},
            ]},
        ],
    },
}  # fmt: skip


def test_stored_requests(tmp_path: Path) -> None:
    (tmp_path / layout.REQUEST_RAW_FOLDER).mkdir()
    (tmp_path / layout.REQUEST_IMAGES_FOLDER).mkdir()
    (tmp_path / layout.REQUEST_IMAGES_FOLDER / f"{IMAGE_SHA256}.jpg").write_bytes(IMAGE)
    file = tmp_path / layout.REQUEST_RAW_FOLDER / "r1.json"

    @fuzzed
    @given(data=damaged(as_json(REQUEST)) | altered(REQUEST).map(as_json))
    def check(data: bytes) -> None:
        file.write_bytes(data)
        reads_or_says_why(lambda: read_request(tmp_path, "r1", "g"))

    check()


@fuzzed
@given(
    value=altered(
        {
            "model": "m",
            "messages": [
                {"content": [{"type": "text", "text": "<opponent>3</opponent>"}]},
                {"content": [{"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,QUJD"}}]},
            ],
        }
    )
)
def test_requests_at_the_server(value: Any) -> None:
    reads_or_says_why(lambda: read_at_server(value))


@fuzzed
@given(data=damaged(b'{"groups": 3}') | json_values.map(as_json) | st.just(deep("[")))
def test_result_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "r.json").write_bytes(data)
    reads_or_says_why(lambda: read_object(tmp_path, "r.json"))
    reads_or_says_why(lambda: read_any_object(tmp_path / "r.json", ""))


ITEM = LabelItem("tested", "p" * 64, "c0", "normal", "g", 0, "v" * 64, 50.0)
KEY = LabelKey("run", 3, {"001": ITEM, "002": replace(ITEM, candidate=1, video_sha256="w" * 64, judge_score=None)})
LABELS = {
    "version": 1,
    "set_sha256": KEY.set_sha256,
    "labeller": "x",
    "labels": {"001": {"score": 50}, "002": {"score": None}},
}


@fuzzed
@given(
    labels=damaged(as_json(LABELS)) | altered(LABELS).map(as_json),
    key=damaged(as_json(KEY.to_json())) | altered(KEY.to_json()).map(as_json),
)
def test_labels_and_their_keys(tmp_path: Path, labels: bytes, key: bytes) -> None:
    (tmp_path / "labels.json").write_bytes(labels)
    (tmp_path / "key.json").write_bytes(key)
    reads_or_says_why(lambda: read_labels(tmp_path / "labels.json", KEY))
    reads_or_says_why(lambda: read_key(tmp_path / "key.json"))


TRAINING = b"model:\n  fsq_levels: [8, 8, 8]\n  state_heads: 4\ntokenizer: {tokenizer_heads: 2}\n"


@fuzzed
@given(data=damaged(TRAINING) | st.sampled_from([b"a: &a [*a]", b"a: !!int ''", b"a: !!bool x", deep("[", "]", 5000)]))
def test_training_configs(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.yaml").write_bytes(data)
    reads_or_says_why(lambda: read_training_config(tmp_path / "t.yaml", {}))
