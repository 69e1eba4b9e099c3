"""A check's outcome becomes a line; one failure never stops the others."""

from __future__ import annotations

from stateplay_rl.checks.lines import NotChecked, require, run_check, run_checks


def raising(error):
    def check():
        raise error

    return check


def test_outcomes():
    lines = run_checks(
        [
            ("good", lambda: "measured 3"),
            ("wrong", lambda: require(False, "3 is not 4")),
            ("absent", raising(NotChecked("no clips"))),
            ("broken", raising(ZeroDivisionError("oops\nsecond line"))),
            ("after", lambda: "still runs"),
        ]
    )
    assert [(line.name, line.status, line.detail) for line in lines] == [
        ("good", "passed", "measured 3"),
        ("wrong", "failed", "3 is not 4"),
        ("absent", "skipped", "no clips"),
        ("broken", "failed", "ZeroDivisionError: oops"),
        ("after", "passed", "still runs"),
    ]


def test_a_secret_in_an_error_is_not_in_the_line(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789")

    def leak():
        raise RuntimeError("401 for sk-0123456789")

    line = run_check("x", leak)
    assert (line.status, line.detail) == ("failed", "RuntimeError: 401 for <SOME_API_KEY>")
    assert "verify install" in line.todo
