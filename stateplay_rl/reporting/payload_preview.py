"""A judge's request as one HTML page that a person can read through: every text and picture, in order."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from html import escape

from stateplay_rl.judges.payload import ImagePart, Part, Payload, TextPart

_FRAME = re.compile(r", frame \d+ of \d+, time [\d.]+ s:$")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1c1f24;
       background: #fff; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; }
pre { white-space: pre-wrap; background: #f3f4f6; padding: .8rem; border-radius: 6px; margin: .6rem 0; }
.frames { display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); gap: .6rem; }
figure { margin: 0; } figure img { width: 100%; image-rendering: auto; border: 1px solid #d5d8dd; }
figcaption { font-size: 12px; color: #4a4f57; }
.number { color: #8a9099; font-size: 12px; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e6e8eb; } pre { background: #22252b; }
  figcaption, .number { color: #a0a6ae; } figure img { border-color: #3a3f46; } }
"""


def preview_html(payload: Payload, facts: Sequence[tuple[str, str]], read_image: Callable[[str], bytes]) -> str:
    """The page.

    Args:
        payload: the request.
        facts: name and value of what stands beside the request, not in it.
        read_image: JPEG bytes by hash.
    """
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts)
    fields = {name: value for name, value in payload.body.items() if name != "messages"}
    told = escape(json.dumps(fields, indent=2))
    body = "\n".join(_blocks(payload.parts, read_image))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Judge request</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<style>{_STYLE}</style></head><body>\n<h1>One request, as it would be sent</h1>\n"
        "<p>Nothing was sent. Below the line stands the whole message: every text in a grey box, every picture under "
        "the text that precedes it.</p>\n"
        f"<h2>Beside the request</h2><table>{rows}</table>\n"
        f"<h2>Fields</h2><pre>{told}</pre>\n<hr>\n<h2>Message</h2>\n{body}\n</body></html>\n"
    )


def _blocks(parts: Sequence[Part], read_image: Callable[[str], bytes]) -> Iterator[str]:
    """Texts, and frames of one video side by side."""
    frames: list[str] = []
    before = ""
    for number, part in enumerate(parts, 1):
        if isinstance(part, ImagePart):
            frames.append(_figure(number, part, before, read_image))
            continue
        before = part.text
        if _FRAME.search(part.text):
            continue
        if frames:
            yield f'<div class="frames">{"".join(frames)}</div>'
            frames = []
        yield _text(number, part)
    if frames:
        yield f'<div class="frames">{"".join(frames)}</div>'


def _text(number: int, part: TextPart) -> str:
    return f'<div class="number">part {number}</div><pre>{escape(part.text)}</pre>'


def _figure(number: int, part: ImagePart, caption: str, read_image: Callable[[str], bytes]) -> str:
    data = base64.b64encode(read_image(part.sha256)).decode("ascii")
    note = f"part {number}, {part.width} x {part.height}, {part.size:,} bytes"
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/jpeg;base64,{data}">'
        f'<figcaption>{escape(caption)}<br><span class="number">{note}</span></figcaption></figure>'
    )
