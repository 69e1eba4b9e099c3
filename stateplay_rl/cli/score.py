"""`sprl score`: parse, call the stage, print what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stateplay_rl.cli.options import (
    ConfigOption,
    OutOption,
    OverwriteOption,
    QuietOption,
    ResumeOption,
    SetOption,
    resolve_config,
)
from stateplay_rl.config.score import ScoreConfig
from stateplay_rl.errors import UsageError


def command(
    groups: Annotated[
        Path,
        typer.Argument(help="groups/ of `sprl rollout`, or a run/ (its finished groups, also while open)."),
    ],
    out: OutOption,
    judge: Annotated[
        str | None,
        typer.Option(
            help="openai (any compatible endpoint), student, referee (arena), replay, mix, or package.module:Class."
        ),
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="For the judge replay: the scores/ directory that answers.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="For the judge openai: the model asked for.")] = None,
    base_url: Annotated[str | None, typer.Option(help="For the judge openai: the endpoint, with /v1.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the key (its name, never the key).")
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option(help="Request store; left out: `requests` below RL_RUN_ROOT, or beside the output."),
    ] = None,
    in_flight: Annotated[int | None, typer.Option(help="Requests at the endpoint at one time, at most 30.")] = None,
    max_requests: Annotated[
        int | None, typer.Option(help="Stop (exit 5) before this command sends more requests that may be billed.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="Stop (exit 5) before this command may have spent more, by the price table.")
    ] = None,
    resend_in_doubt: Annotated[
        bool, typer.Option("--resend-in-doubt", help="Send again the requests that may have been paid already.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build all requests, write one as an HTML page, send nothing.")
    ] = False,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Test the judge: repeats, orders, planted candidates; no scores are written."),
    ] = False,
    reward_model: Annotated[
        Path | None, typer.Option(help="For the judge student: the reward_model/ directory of `sprl train-rm`.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N groups, by group id.")] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
) -> None:
    """Score every group once; can be run again with another judge."""
    if dry_run and (probe or resend_in_doubt):
        raise UsageError("--dry-run sends nothing: it excludes --probe and --resend-in-doubt", "drop one of them")
    flags: dict[str, Any] = {
        "judge.name": judge,
        "judge.scores": None if scores is None else str(scores),
        "judge.model": model,
        "judge.base_url": base_url,
        "judge.api_key_env": api_key_env,
        "judge.requests.folder": None if requests is None else str(requests),
        "judge.requests.in_flight": in_flight,
        "judge.requests.max_requests": max_requests,
        "judge.requests.max_cost": max_cost,
        "probe.enabled": True if probe else None,
        "judge.reward_model": None if reward_model is None else str(reward_model),
        "limit": limit,
    }
    resolved = resolve_config(ScoreConfig, config, settings, flags)
    # The stages bring pyarrow and numpy along: not before the command line has been parsed.
    from stateplay_rl.cli import score_output
    from stateplay_rl.stages.score import ScoreInputs

    inputs = ScoreInputs(groups, resume, overwrite, resend_in_doubt)
    if dry_run:
        from stateplay_rl.stages import score_preview

        score_output.show_preview(score_preview.run(resolved, inputs, out))
    elif resolved.probe.enabled:
        from stateplay_rl.stages import score_probe

        score_output.show_probe(score_probe.run(resolved, inputs, out))
    else:
        from stateplay_rl.stages import score

        score_output.show_scores(score.run(resolved, inputs, out))
