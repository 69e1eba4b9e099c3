"""Reading the metadata CSV and clip folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateplay_rl.conditions.source import read_clips, read_csv
from stateplay_rl.errors import InputError
from tests.conditions.clip_factory import COLUMNS, make_clip_folder, write_csv

ROW = {
    "video": "a/video.mp4",
    "action": "a/actions.parquet",
    "distribution": "Macro_success",
    "prompt": "NPC: 色调艳丽, <b>\n„quoted“",
    "strategy": "Passive",
    "category": "Defense",
}


def test_class_is_lower_case_and_never_mixed_up_with_the_category(tmp_path: Path) -> None:
    (row,) = read_csv(write_csv(tmp_path / "m.csv", [ROW])).rows
    assert (row.mechanics_class, row.distribution, row.npc_category) == (
        "macro_success",
        "Macro_success",
        "Defense",
    )
    assert row.prompt == ROW["prompt"]
    assert row.row == 1
    assert not row.problem


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
def test_byte_order_mark_and_line_ends_do_not_matter(tmp_path: Path, mark: bytes, line_end: bytes) -> None:
    lines = [
        ",".join(COLUMNS).encode(),
        "a.mp4,a.parquet,normal,häää,s,c".encode(),
        b"b.mp4,b.parquet,normal,p,s,c",
    ]
    path = tmp_path / "m.csv"
    path.write_bytes(mark + line_end.join(lines))
    rows = read_csv(path).rows
    assert [row.video for row in rows] == ["a.mp4", "b.mp4"]
    assert rows[0].prompt == "häää"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lacks the columns video"),
        (b"video,action,distribution,prompt,strategy\n", "lacks the columns category"),
        (b"video;action;distribution;prompt;strategy;category\n", "commas"),
        (b"video,video,action,distribution,prompt,strategy,category\n", "twice"),
        (",".join(COLUMNS).encode() + b"\n", "no rows"),
        (",".join(COLUMNS).encode() + b'\na,b,c,"open quote,s,c\n' * 3, "line"),
        (",".join(COLUMNS).encode() + "\na,b,normal,Größe,s,c\n".encode("latin-1"), "not UTF-8"),
        ((",".join(COLUMNS) + "\na,b,normal,p,s,c\n").encode("utf-16"), "UTF-16"),
        (",".join(COLUMNS).encode() + b'\na,b,c,"' + b"x" * 200_000 + b'",s,c\n', "field larger"),
    ],
    ids=["empty", "column", "semicolon", "doubled", "no rows", "quote", "latin-1", "utf-16", "huge field"],
)
def test_unusable_csv_says_what_is_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_csv(path)
    assert str(path) in caught.value.what
    assert caught.value.hint


def test_missing_csv_and_missing_root(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a file"):
        read_csv(tmp_path / "none.csv")
    with pytest.raises(InputError, match="data root"):
        read_csv(write_csv(tmp_path / "m.csv", [ROW]), tmp_path / "none")


def test_rows_of_wrong_length_and_equal_rows_get_their_reason(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "m.csv", [ROW, {**ROW, "prompt": "other"}, ROW])
    with path.open("a") as file:
        file.write("a,b,c\n\n")
    rows = read_csv(path).rows
    assert [row.problem[:1] for row in rows] == [(), (), ("duplicate_row",), ("malformed_row",)]
    assert rows[2].problem[1] == "equals row 1"


def test_unread_columns_and_backslashes_are_noted(tmp_path: Path) -> None:
    row = {**ROW, "video": "a\\video.mp4", "seed": "7"}
    source = read_csv(write_csv(tmp_path / "m.csv", [row], [*COLUMNS, "seed"]))
    assert source.ignored_columns == ("seed",)
    assert source.rows[0].warnings == ("backslash_path",)


def test_clip_folders(tmp_path: Path) -> None:
    make_clip_folder(tmp_path, "02_b", 2, distribution="Result_win")
    make_clip_folder(tmp_path, "01_a", 1, prompt="something else")
    (tmp_path / "notes.txt").write_text("not a clip")
    rows = read_clips(tmp_path).rows
    assert [(row.name, row.mechanics_class, row.prompt) for row in rows] == [
        ("01_a", "normal", "NPC 1"),
        ("02_b", "result_win", "NPC 2"),
    ]
    assert rows[0].warnings == ("prompt_differs",)
    assert rows[1].warnings == ()
    assert rows[1].video is None
    assert rows[1].first_frame == "02_b/first_frame.png"


def test_prompt_comes_from_the_metadata_without_a_prompt_file(tmp_path: Path) -> None:
    (make_clip_folder(tmp_path, "a", 1, prompt="stated") / "prompt.txt").unlink()
    assert read_clips(tmp_path).rows[0].prompt == "stated"


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("metadata.json", b"[1, 2]", "bad_metadata"),
        ("metadata.json", b"{", "bad_metadata"),
        ("metadata.json", b"[" * 100_000, "bad_metadata"),
        ("metadata.json", json.dumps({"prompt": 3}).encode(), "bad_metadata"),
        ("prompt.txt", b"\xff\xfe\xff", "bad_prompt_file"),
        ("prompt.txt", b"x" * (2**20 + 1), "bad_prompt_file"),
    ],
)
def test_damaged_side_files_are_a_reason(tmp_path: Path, name: str, content: bytes, code: str) -> None:
    (make_clip_folder(tmp_path, "a", 1) / name).write_bytes(content)
    assert read_clips(tmp_path).rows[0].problem[:1] == (code,)


def test_missing_metadata_is_a_reason(tmp_path: Path) -> None:
    (make_clip_folder(tmp_path, "a", 1) / "metadata.json").unlink()
    assert read_clips(tmp_path).rows[0].problem[:1] == ("bad_metadata",)


def test_side_file_linked_from_outside_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    folder = make_clip_folder(tmp_path / "clips", "a", 1)
    (folder / "prompt.txt").unlink()
    (folder / "prompt.txt").symlink_to(tmp_path / "secret.txt")
    (row,) = read_clips(tmp_path / "clips").rows
    assert row.problem[:1] == ("bad_prompt_file",)
    assert "secret" not in row.prompt


def test_folder_without_clips(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no clip folders"):
        read_clips(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        read_clips(tmp_path / "none")
