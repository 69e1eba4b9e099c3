"""`sprl score --dry-run`: everything built, one page, nothing sent."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from examples.drills.arena_groups import write_groups
from stateplay_rl.cli.main import main
from stateplay_rl.errors import EXIT_INPUT, EXIT_OK, EXIT_USAGE
from stateplay_rl.stores.manifest import read_manifest
from tests.judges.raw_server import send, serving
from tests.judges.test_protocol import CLASSES, STATE_COLUMNS


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_groups(tmp_path_factory.mktemp("arena") / "groups", 3, rendered=1)


def test_one_page_that_shows_the_whole_request(groups: Path, tmp_path: Path) -> None:
    with serving(send(b"HTTP/1.1 500 X\r\n\r\n")) as (url, requests):
        arguments = ["score", str(groups), "--judge", "openai", "--base-url", url, "--dry-run"]
        assert main([*arguments, "--out", str(tmp_path / "dry"), "-q"]) == EXIT_OK
    assert requests == []
    assert not (tmp_path / "requests").exists()
    page = (tmp_path / "dry" / "preview.html").read_text()
    assert page.count('<img alt="') == 121
    captions = re.findall(r'<img alt="([^"]*)"', page)
    assert captions[0].startswith("First frame")
    assert captions[1] == "Reference, frame 1 of 24, time 0.000 s:"
    assert captions[25] == "Candidate A, frame 1 of 24, time 0.000 s:"
    assert captions[-1] == "Candidate D, frame 24 of 24, time 1.600 s:"
    assert "0.000 s to 0.200 s:" in page
    assert "candidate under each label" in page
    found = json.loads((tmp_path / "dry" / "dry_run.json").read_text())
    assert found["groups"] == 3
    assert found["image_bytes"] > 100_000
    read_manifest(tmp_path / "dry", schema="preview", verify_files=True)


def test_the_bytes_that_would_be_sent_tell_no_answer(groups: Path, tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/v1"
    arguments = ["score", str(groups), "--judge", "openai", "--base-url", url, "--dry-run", "--limit", "1"]
    assert main([*arguments, "--out", str(tmp_path / "dry"), "-q"]) == EXIT_OK
    body = (tmp_path / "dry" / "request.json").read_bytes()
    text = re.sub(rb"base64,[A-Za-z0-9+/=]*", b"", body).lower()
    for word in (*CLASSES, *STATE_COLUMNS, "g00000", "c0", "candidate_", ".mp4", str(groups)):
        assert not re.search(rb"(?<![a-z0-9])" + re.escape(word.lower().encode()) + rb"(?![a-z0-9])", text), word


def test_texts_of_the_data_are_escaped(tmp_path: Path) -> None:
    from stateplay_rl.stores.manifest import OutputDirectory
    from tests.judges.paid_groups import stored
    from tests.stages.test_score import WorldOnly

    with OutputDirectory.open(
        tmp_path / "g",
        schema="groups",
        version=1,
        command="rollout",
        config=WorldOnly(),
        inputs={},
        resume=False,
        overwrite=False,
    ) as output:
        stored(output.path, prompt="<script>alert(1)</script>")
        output.seal()
    arguments = ["score", str(tmp_path / "g"), "--judge", "openai", "--base-url", "http://127.0.0.1:9/v1", "--dry-run"]
    assert main([*arguments, "--out", str(tmp_path / "dry"), "-q"]) == EXIT_OK
    assert "<script>" not in (tmp_path / "dry" / "preview.html").read_text()


@pytest.mark.parametrize(
    "flags, code",
    [
        (["--judge", "referee"], EXIT_USAGE),
        (["--judge", "openai", "--probe"], EXIT_USAGE),
        (["--judge", "openai", "--resend-in-doubt"], EXIT_USAGE),
        (["--judge", "openai", "--set", "judge.protocol.example_images=[a.png, b.png, c.png]"], EXIT_INPUT),
    ],
)
def test_what_does_not_fit(groups: Path, tmp_path: Path, flags: list[str], code: int) -> None:
    assert main(["score", str(groups), "--dry-run", "--out", str(tmp_path / "dry"), "-q", *flags]) == code
