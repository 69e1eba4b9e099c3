"""The blind page as files: one HTML file, and videos whose names say nothing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from stateplay_rl.reporting.actions import encode_actions
from stateplay_rl.reporting.label_set import LabelSet
from stateplay_rl.reporting.media import PIXEL_ART_WIDTH
from stateplay_rl.reporting.page import embedded_json
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import pretty_json
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.pictures import read_picture

_TEMPLATES = files("stateplay_rl.reporting") / "templates"


def label_files(chosen: LabelSet) -> Iterator[tuple[str, bytes]]:
    """Name (relative to the report) and content of every file of the blind page; the key last.

    Raises:
        CorruptionError: a video is not what its group records.
    """
    folder = layout.LABELS_FOLDER
    for name, item in chosen.key.items.items():
        group = chosen.groups[name]
        group.verify()
        yield f"{folder}/{layout.MEDIA_FOLDER}/{name}.mp4", group.candidate_video(item.candidate).read_bytes()
        real = group.reference_video()
        if real is not None:
            yield f"{folder}/{layout.MEDIA_FOLDER}/{name}-real.mp4", real.read_bytes()
    yield f"{folder}/{layout.LABEL_PAGE}", _page(chosen).encode("utf-8")
    yield f"{folder}/{layout.LABEL_KEY}", pretty_json(chosen.key.to_json()).encode("utf-8")


def _page(chosen: LabelSet) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (_TEMPLATES / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["embedded_json"] = embedded_json
    items = [_shown(name, chosen.groups[name]) for name in chosen.key.items]
    names = ("style.css", "theme.js", "label.js")
    style, theme, script = (Markup((_TEMPLATES / name).read_text(encoding="utf-8")) for name in names)
    data = {"set_sha256": chosen.key.set_sha256, "items": items}
    return environment.get_template("label.html.j2").render(data=data, style=style, theme=theme, script=script)


def _shown(name: str, group: StoredGroup) -> dict[str, Any]:
    """What a person sees of an item: nothing that differs between the policies."""
    record = group.record
    small = read_picture(group.first_frame_path()).shape[1] <= PIXEL_ART_WIDTH
    return {
        "name": name,
        "prompt": record.prompt,
        "actions": encode_actions(record.buttons),
        "fps": record.fps,
        "frames": record.frames,
        "real": group.reference_video() is not None,
        "pixelated": small,
    }
