"""The command line's boundary: exit codes, messages, no traceback for what a user can cause."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from stateplay_rl import __version__
from stateplay_rl.cli import main as cli
from stateplay_rl.errors import CheckError, CorruptionError, OutsideError, SprlError, UsageError
from stateplay_rl.stores.lock import DirectoryLock

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    "audit-ckpt",
    "build-conditions",
    "rollout",
    "score",
    "train-rm",
    "train-nft",
    "verify",
    "report",
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """Run a function as the body of a command `work` of an app of its own."""

    def run_body(body: Callable[[], object]) -> int:
        app = typer.Typer()

        @app.command("work")
        def work(number: int = 1) -> object:
            """Work."""
            return body()

        app.command("rest")(lambda: None)
        monkeypatch.setattr(cli, "app", app)
        return cli.main(["work"])

    return run_body


def raiser(error: BaseException) -> Callable[[], object]:
    def body() -> object:
        raise error

    return body


def test_all_subcommands_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    assert "Exit codes" in text


def test_no_arguments_show_help_and_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "Usage" in capsys.readouterr().out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"sprl {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("what", "hint"), 2),
        (CorruptionError("what", "hint"), 3),
        (CheckError("what", "hint"), 4),
        (OutsideError("what", "hint"), 5),
        (SprlError("what", "hint"), 1),
    ],
)
def test_our_errors_become_a_message_and_their_code(run, capsys, error: SprlError, code: int) -> None:
    assert run(raiser(error)) == code
    assert capsys.readouterr().err == "error: what\n  -> hint\n"


def test_messages_are_not_wrapped_and_markup_is_text(run, capsys) -> None:
    path = "/very" * 60 + "/[bold]x[/bold].json"
    run(raiser(UsageError(f"cannot use {path}")))
    assert capsys.readouterr().err == f"error: cannot use {path}\n"


def test_a_bug_shows_its_traceback_and_exits_1(run, capsys) -> None:
    assert run(raiser(RuntimeError("broken invariant"))) == 1
    text = capsys.readouterr().err
    assert "Traceback" in text
    assert "broken invariant" in text
    assert "bug" in text


def test_secrets_of_the_environment_are_never_printed(run, capsys, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-1234")
    run(raiser(RuntimeError("401 for sk-very-secret-1234")))
    run(raiser(UsageError("key sk-very-secret-1234 refused", "sk-very-secret-1234")))
    text = capsys.readouterr().err
    assert "sk-very-secret" not in text
    assert "<OPENAI_API_KEY>" in text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/x/y"), 3),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x/y"), 3),
        (OSError(errno.ENOSPC, "No space left on device"), 5),
        (OSError(errno.EROFS, "Read-only file system", "/x/y"), 5),
    ],
)
def test_system_errors_have_no_traceback(run, capsys, error: OSError, code: int) -> None:
    assert run(raiser(error)) == code
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert str(error.strerror) in text


def test_a_missing_optional_library_names_its_extra(run, capsys) -> None:
    assert run(raiser(ModuleNotFoundError("No module named 'diffusers'", name="diffusers.models"))) == 2
    assert 'pip install "stateplay-rl[world]"' in capsys.readouterr().err
    assert run(raiser(ModuleNotFoundError("No module named 'zzz'", name="zzz"))) == 1


def test_an_interrupt_is_130(run, capsys) -> None:
    assert run(raiser(KeyboardInterrupt())) == 130
    assert "--resume" in capsys.readouterr().err


def test_a_command_may_return_its_code(run) -> None:
    assert run(lambda: 4) == 4
    assert run(lambda: None) == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["wrk"], "Did you mean 'work'"),
        (["work", "--numbr", "3"], "--number"),
        (["work", "--number", "many"], "valid integer"),
        (["work", "surplus"], "surplus"),
    ],
)
def test_usage_errors_are_2_and_offer_the_nearest(run, capsys, arguments: list[str], expected: str) -> None:
    run(lambda: None)  # installs the app
    assert cli.main(arguments) == 2
    text = capsys.readouterr().err
    assert expected in text
    assert "Traceback" not in text


def test_usage_errors_point_to_the_help_of_the_command(capsys) -> None:
    assert cli.main(["score", "--nonsense"]) == 2
    assert "`sprl score --help`" in capsys.readouterr().err
    assert cli.main(["verify", "dir", "--nonsense"]) == 2
    assert "`sprl verify dir --help`" in capsys.readouterr().err
    assert cli.main(["verify"]) == 2
    assert "error: a subcommand is needed" in capsys.readouterr().err


def test_python_dash_m_is_sprl() -> None:
    command = [sys.executable, "-m", "stateplay_rl", "--version"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, f"sprl {__version__}\n")


def test_a_reader_that_leaves_causes_no_traceback() -> None:
    code = (
        "import sys, time; from stateplay_rl.cli import main as cli; import typer\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def work():\n"
        "    for _ in range(100000): print('x' * 100)\n"
        "cli.app = app; sys.exit(cli.main([]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 5
    assert errors == ""


def test_ctrl_c_in_a_real_process_is_130() -> None:
    # A background job of a shell inherits an ignored SIGINT, for which Python installs no handler.
    code = (
        "import signal, sys, time; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from stateplay_rl.cli import main as cli; import typer\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def work():\n"
        "    print('ready', flush=True); time.sleep(60)\n"
        "cli.app = app; sys.exit(cli.main([]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_ranks_are_named_when_there_are_several(run, capsys, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    run(raiser(UsageError("what")))
    assert capsys.readouterr().err == "[rank 1] error: what\n"


def test_a_locked_directory_is_a_usage_error(run, tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        assert run(lambda: DirectoryLock(tmp_path).acquire()) == 2
    assert os.listdir(tmp_path) == []
