"""The `sprl` app and its error boundary.

Nothing heavy is imported here or in any command's module, so that help is instant; a command imports its
stage when it runs.
"""

from __future__ import annotations

import atexit
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from stateplay_rl import __version__
from stateplay_rl.cli import (
    audit_ckpt,
    build_conditions,
    report,
    rollout,
    score,
    train_nft,
    train_rm,
    verify,
    verify_profile,
    verify_run,
)
from stateplay_rl.errors import (
    EXIT_BUG,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_OUTSIDE,
    EXIT_USAGE,
    SprlError,
)
from stateplay_rl.stores.redaction import redact

PROGRAM = "sprl"
_OUTSIDE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EPIPE})
_EXTRAS = {"diffusers": "world", "peft": "world", "tokenizers": "world", "transformers": "world"}

app = typer.Typer(
    name=PROGRAM,
    help="Post-train an interactive game world model with reinforcement learning.",
    epilog="Every command reads and writes plain directories. Exit codes: 0 done, 1 a bug, 2 wrong usage, "
    "3 bad input, 4 a check failed, 5 something outside failed (resume), 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("audit-ckpt")(audit_ckpt.command)
app.command("build-conditions")(build_conditions.command)
app.command("rollout")(rollout.command)
app.command("score")(score.command)
app.command("train-rm")(train_rm.command)
app.command("train-nft")(train_nft.command)
verify.app.command("resume")(verify_run.resume)
verify.app.command("preflight")(verify_run.preflight)
verify.app.command("profile")(verify_profile.profile)
app.add_typer(verify.app, name="verify")
app.command("report")(report.command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the one place where exceptions become messages and exit codes.

    Args:
        argv: arguments without the program's name; None for the process's own.

    Returns:
        The exit code; see `stateplay_rl.errors`.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        result = app(args=arguments, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except SprlError as error:
        _say(error.what, error.hint)
        _trace_if_asked()
        return error.exit_code
    except typer.TyperException as error:
        # Empty when a group of commands is called without one: its help has been printed.
        _say(
            error.format_message() or "a subcommand is needed",
            f"`{_help_command(arguments)}` lists what is possible",
        )
        return EXIT_USAGE
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted", "what was finished stays valid; go on with --resume")
        return EXIT_INTERRUPTED
    except SystemExit as error:
        return _exit_code(error)
    except BrokenPipeError:
        return _reader_left()
    except ModuleNotFoundError as error:
        return _missing_module(error)
    except OSError as error:
        return _system_error(error)
    except Exception:  # noqa: BLE001 - the boundary: everything else is a bug and shows its traceback
        _bug()
        return EXIT_BUG
    if result == EXIT_INTERRUPTED:
        _say("interrupted", "what was finished stays valid; go on with --resume")
    return result if isinstance(result, int) else EXIT_OK


def entry() -> None:
    """Console script."""
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        _end_rank(code)
    sys.exit(code)


def _end_rank(code: int) -> None:
    """End one of several ranks as `sys.exit` does, but for the destructors of C++ libraries.

    A finished rank was seen to abort in them ("terminate called without an active exception"), for which torchrun
    stops all others and reports a failure.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _say(what: str, hint: str = "") -> None:
    """Message on stderr: what was found and where, then what to run next."""
    rank = f"[rank {os.environ.get('RANK', '0')}] " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    text = Text(f"{rank}error: ", style="bold red").append(redact(what), style="not bold default")
    if hint:
        text.append("\n  -> ", style="bold").append(redact(hint), style="not bold default")
    # soft_wrap: paths stay whole, so that they can be copied.
    Console(stderr=True, highlight=False, soft_wrap=True).print(text)


def _bug() -> None:
    sys.stderr.write(redact(traceback.format_exc()))
    _say("this is a bug in sprl", "please report it with the lines above; --resume is safe")


def _trace_if_asked() -> None:
    if os.environ.get("SPRL_TRACEBACK"):
        sys.stderr.write(redact(traceback.format_exc()))


def _help_command(arguments: Sequence[str]) -> str:
    """Help of the (sub)command that was meant."""
    names = {command.name for command in app.registered_commands} | {"verify"}
    words = [word for word in arguments[:1] if word in names]
    if words == ["verify"]:
        nested = {command.name for command in verify.app.registered_commands}
        words += [word for word in arguments[1:2] if word in nested]
    return " ".join([PROGRAM, *words, "--help"])


def _exit_code(error: SystemExit) -> int:
    cause = error.__context__
    if isinstance(cause, OSError) and cause.errno == errno.EPIPE:
        return _reader_left()
    return error.code if isinstance(error.code, int) else EXIT_OK


def _reader_left() -> int:
    """The reader of our output has gone (as in ``| head``): end quietly."""
    # The interpreter flushes stdout once more at its end; let that go nowhere.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
    os.close(nowhere)
    return EXIT_OUTSIDE


def _missing_module(error: ModuleNotFoundError) -> int:
    name = (error.name or "").partition(".")[0]
    if name not in _EXTRAS:
        _bug()
        return EXIT_BUG
    _say(f"{name} is not installed", f'install it with: pip install "stateplay-rl[{_EXTRAS[name]}]"')
    return EXIT_USAGE


def _system_error(error: OSError) -> int:
    """A file that cannot be opened, a full disk: known causes get a message, the rest is a bug."""
    if error.filename is None and error.errno not in _OUTSIDE:
        _bug()
        return EXIT_BUG
    where = "" if error.filename is None else f" {error.filename}"
    outside = error.errno in _OUTSIDE
    _say(
        f"cannot access{where}: {error.strerror}",
        "mend that, then run again with --resume" if outside else "check the path and its permissions",
    )
    _trace_if_asked()
    return EXIT_OUTSIDE if outside else EXIT_INPUT
