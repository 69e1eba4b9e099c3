"""`sprl score --dry-run`: build every request, show one, send nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.config.score import ScoreConfig
from stateplay_rl.errors import InputError, UsageError
from stateplay_rl.judges.openai_judge import OpenAIJudge
from stateplay_rl.judges.payload import Payload, UnfitGroupError
from stateplay_rl.judges.request_body import body_bytes
from stateplay_rl.reporting.payload_preview import preview_html
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.group_source import GroupSource, open_groups
from stateplay_rl.stages.judge_choice import make_judge
from stateplay_rl.stages.remote_judging import estimate, openai_judges, protocol_facts
from stateplay_rl.stages.score import ScoreInputs
from stateplay_rl.stores import layout
from stateplay_rl.stores.atomic import sha256_bytes
from stateplay_rl.stores.manifest import OutputDirectory

BODY = "request.json"
"""The very bytes of the shown request's body."""


@dataclass(frozen=True)
class PreviewSummary:
    """What a dry run found.

    Args:
        page: the HTML preview.
        unfit: reason code -> groups that production mode would not show.
        image_bytes: JPEG bytes of all requests together.
        input_tokens: estimated, of all requests together.
        estimate: in words.
    """

    page: Path
    groups: int
    unfit: dict[str, int]
    image_bytes: int
    input_tokens: int
    estimate: str


def run(config: ScoreConfig, inputs: ScoreInputs, out: Path) -> PreviewSummary:
    """Build the request of every group and seal `out` with the first one's preview.

    Raises:
        UsageError: the judge sends no requests.
        InputError, CorruptionError: groups that are missing, unfinished or damaged.
        OutputError: the output is finished, foreign, locked, or overlaps with an input.
    """
    source = open_groups(inputs.groups)
    judge = make_judge(config.judge, world=source.world, out=out)
    judges = openai_judges(judge)
    if len(judges) != 1:
        raise UsageError(
            f"--dry-run shows the requests of one judge `openai`; this judge is {judge.judge_id}",
            "give --judge openai",
        )
    with OutputDirectory.open(
        out,
        schema="preview",
        version=layout.SCHEMAS["preview"],
        command="score --dry-run",
        config=config,
        inputs={"groups": inputs.groups},
        resume=inputs.resume,
        overwrite=inputs.overwrite,
    ) as output:
        summary, shown = _build_all(source, judges[0], config, output)
        output.write_json(layout.DRY_RUN, {**asdict(summary), "page": layout.PREVIEW, "shown_group": shown})
        output.seal(extra={"world": source.world, "protocols": protocol_facts(judge, output.path)})
    return summary


def _build_all(
    source: GroupSource, judge: OpenAIJudge, config: ScoreConfig, output: OutputDirectory
) -> tuple[PreviewSummary, str]:
    ids = tuple(source.roots)[: config.limit]
    shown: str | None = None
    unfit: dict[str, int] = {}
    size = tokens = 0
    with Progress("dry run", len(ids), "groups") as progress:
        for group_id in ids:
            group = source.read(group_id)
            group.verify()
            pictures: dict[str, bytes] = {}

            def keep(data: bytes, pictures: dict[str, bytes] = pictures) -> str:
                sha256 = sha256_bytes(data)
                pictures[sha256] = data
                return sha256

            progress.advance()
            try:
                payload = judge.preview(group, keep)
            except UnfitGroupError as error:
                code = error.what.partition(":")[0]
                unfit[code] = unfit.get(code, 0) + 1
                continue
            size += payload.image_bytes
            tokens += payload.estimated_input_tokens()
            if shown is None:
                shown = group_id
                output.write_text(
                    layout.PREVIEW, preview_html(payload, _facts(group_id, payload, judge), pictures.__getitem__)
                )
                output.write_bytes(BODY, body_bytes(payload, pictures.__getitem__))
    if shown is None:
        reasons = ", ".join(f"{code}: {count}" for code, count in unfit.items())
        raise InputError(f"no group of {source.path} can be shown ({reasons or 'there is none'})", "roll out others")
    words = estimate(judge, source.read(shown), len(ids)).sentence(judge)
    return PreviewSummary(output.path / layout.PREVIEW, len(ids), unfit, size, tokens, words), shown


def _facts(group_id: str, payload: Payload, judge: OpenAIJudge) -> list[tuple[str, str]]:
    under: list[tuple[str, Any]] = list(zip(payload.labels, payload.order, strict=True))
    return [
        ("group", group_id),
        ("judge", judge.judge_id),
        ("endpoint", judge.spec.base_url),
        ("protocol hash", judge.protocol_sha256),
        ("key of this request", payload.key),
        ("candidate under each label", ", ".join(f"{label}: candidate {k}" for label, k in under)),
        ("pictures", f"{len(payload.images)}, {payload.image_bytes / 1e6:.2f} MB"),
        ("input tokens", f"about {payload.estimated_input_tokens():,}"),
        ("mode", judge.spec.protocol.mode),
    ]
