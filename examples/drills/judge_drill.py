"""The paid judge under fire: thousands of groups, faults of every kind, three SIGKILLs.

    python examples/drills/judge_drill.py --out drill            # 2,000 groups, about ten minutes
    python examples/drills/judge_drill.py --out drill --groups 60 --delay 0.4

A local server (`stateplay_rl.arena.serve`) answers after a fixed delay and meets requests with 429s, 500s, timeouts,
resets in the middle of the body, malformed answers and swapped models. `sprl score` is killed three times and resumed.
Then the server's own log is compared with what the command recorded:

* every group is scored, failed with a reason, or in doubt;
* nothing that the server answered is sent again unasked;
* `--resend-in-doubt` completes the rest;
* the key that was used stands in no file.

The ideal wall time is that of a client that keeps every place in flight busy from first to last: the sum of the times
for which requests are held, over the number of places. Twice: with the server's planned delays (and the client's read
limit where it never answers), and with the times for which the server's log says that it held each request. The second
is what this server could give on this machine; the first is only reached where the machine has time for the server.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from examples.drills.arena_groups import write_groups  # noqa: E402 - found through the line above
from stateplay_rl.stores import layout  # noqa: E402
from stateplay_rl.stores.requests import read_attempts  # noqa: E402
from stateplay_rl.stores.scores import ScoreTable  # noqa: E402

KEY_VARIABLE = "DRILL_JUDGE_KEY"
KEY = "sk-drill-7f3a91c2e55d4b08-never-on-disk"
HELD_FOR_GOOD = 3600.0
NOT_BILLED = ("rate_limit", "error")
UNREADABLE = ("malformed", "wrong_model")
MOST_ROUNDS = 6


@dataclass(frozen=True)
class Drill:
    """Sizes, times in seconds, and shares of requests that meet a fault."""

    out: Path
    groups: int = 2000
    in_flight: int = 28
    delay: float = 6.0
    read_limit: float = 9.0
    kills: int = 3
    rate_limit: float = 0.10
    error: float = 0.05
    timeout: float = 0.03
    reset: float = 0.02
    malformed: float = 0.05
    wrong_model: float = 0.01
    retry_after: float = 1.0
    seed: int = 1

    @property
    def scores(self) -> Path:
        return self.out / "root" / "scores"


@dataclass
class Result:
    """What came out; `problems` is empty when everything held."""

    wall_seconds: float = 0.0
    ideal_seconds: float = 0.0
    over_ideal: float = 0.0
    served_seconds: float = 0.0
    over_served: float = 0.0
    mean_in_flight: float = 0.0
    runs: int = 0
    groups: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    server: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    resend_rounds: int = 0
    groups_after_resend: dict[str, int] = field(default_factory=dict)
    files_searched: int = 0
    peak_memory_mb: float = 0.0
    problems: list[str] = field(default_factory=list)


def run_drill(drill: Drill) -> Result:
    """Make groups, start the server, score under kills, check, resend, check again."""
    drill.out.mkdir(parents=True, exist_ok=True)
    groups = write_groups(drill.out / "groups", drill.groups)
    server = start_server(drill)
    result = Result()
    try:
        base_url = f"http://127.0.0.1:{wait_for_port(drill.out / 'port')}/v1"
        _score_under_kills(drill, groups, base_url, result)
        seen = len(server_lines(drill))
        _check_first_phase(drill, result)
        _resend(drill, groups, base_url, result)
        _check_resent(drill, seen, result)
    finally:
        server.terminate()
        server.wait(30)
    _check_key(drill, result)
    return result


def start_server(drill: Drill) -> subprocess.Popen[bytes]:
    """The arena's judge server with this drill's faults."""
    plan = {
        "delay": drill.delay,
        "rate-limit": drill.rate_limit,
        "error": drill.error,
        "timeout": drill.timeout,
        "reset": drill.reset,
        "malformed": drill.malformed,
        "wrong-model": drill.wrong_model,
        "retry-after": drill.retry_after,
        "hang": HELD_FOR_GOOD,
        "seed": drill.seed,
    }
    options = [word for name, value in plan.items() for word in (f"--{name}", str(value))]
    files = ["--port-file", str(drill.out / "port"), "--log", str(drill.out / "server.jsonl")]
    command = [sys.executable, "-m", "stateplay_rl.arena.serve", "--port", "0", *files, *options]
    return subprocess.Popen(command, cwd=ROOT, env=_environment(drill), stdout=subprocess.DEVNULL)


def wait_for_port(file: Path, seconds: float = 60.0) -> int:
    """The port that the server wrote."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if file.is_file() and (text := file.read_text().strip()):
            return int(text)
        time.sleep(0.05)
    raise SystemExit(f"no port in {file} after {seconds:g} s")


def _environment(drill: Drill) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RL_RUN_ROOT": str(drill.out / "root"),
        KEY_VARIABLE: KEY,
        "OMP_NUM_THREADS": "1",
    }


def _command(drill: Drill, groups: Path, base_url: str, *flags: str) -> list[str]:
    settings = {
        "judge.requests.read_seconds": drill.read_limit,
        "judge.requests.request_seconds": drill.read_limit * 3,
        "judge.requests.in_flight": drill.in_flight,
    }
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    judge = ["--judge", "openai", "--base-url", base_url, "--api-key-env", KEY_VARIABLE]
    command = [sys.executable, "-m", "stateplay_rl", "score", str(groups), *judge, *options]
    return [*command, "--out", str(drill.scores), *flags]


def _start(drill: Drill, groups: Path, base_url: str, *flags: str) -> subprocess.Popen[bytes]:
    with (drill.out / "score.log").open("ab") as log:
        command = _command(drill, groups, base_url, *flags)
        return subprocess.Popen(command, cwd=ROOT, env=_environment(drill), stdout=log, stderr=log)


def _score_under_kills(drill: Drill, groups: Path, base_url: str, result: Result) -> None:
    """Kill at equal shares of the work, resume, and time it all."""
    started = time.monotonic()
    flags: tuple[str, ...] = ()
    for number in range(1, drill.kills + 1):
        process = _start(drill, groups, base_url, *flags)
        result.runs += 1
        wanted = drill.groups * number // (drill.kills + 1)
        while process.poll() is None and _answered(drill) < wanted:
            time.sleep(0.05)
        if process.poll() is not None:
            result.problems.append(f"run {number} ended by itself with {process.returncode} before its kill")
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        flags = ("--resume",)
    process = _start(drill, groups, base_url, *flags)
    result.runs += 1
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    result.wall_seconds = round(time.monotonic() - started, 2)
    result.peak_memory_mb = round(usage.ru_maxrss / 1024, 1)
    if process.returncode != 0:
        result.problems.append(f"the last run ended with exit code {process.returncode}")


def server_lines(drill: Drill) -> list[dict[str, Any]]:
    """The server's log."""
    file = drill.out / "server.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def _answered(drill: Drill) -> int:
    """Good answers so far, by a cheap look at the server's log."""
    file = drill.out / "server.jsonl"
    return file.read_bytes().count(b'"outcome": "completed"') if file.is_file() else 0


def _check_first_phase(drill: Drill, result: Result) -> None:
    """Every group has an outcome; nothing was sent again that must not be; how far from the ideal."""
    result.groups, result.reasons = _outcomes(drill)
    if sum(result.groups.values()) != drill.groups:
        result.problems.append(f"{sum(result.groups.values())} groups have an outcome, not {drill.groups}")
    lines = server_lines(drill)
    ended = {(line["body_sha256"], line["arrival"]): line["outcome"] for line in lines if line["event"] == "ended"}
    arrivals = [(line["body_sha256"], line["arrival"]) for line in lines if line["event"] == "arrived"]
    # What has not ended yet is being held: the timeouts, or requests of a client that was killed.
    outcomes = {name: ended.get(name, "held") for name in arrivals}
    result.server = dict(sorted(Counter(outcomes.values()).items()))
    result.problems += resent_unasked(outcomes)
    held = {"rate_limit": 0.0, "error": 0.0, "held": drill.read_limit, "timeout": drill.read_limit}
    total = sum(held.get(outcome, drill.delay) for outcome in outcomes.values())
    result.ideal_seconds = round(total / drill.in_flight, 2)
    result.over_ideal = round(result.wall_seconds / result.ideal_seconds - 1, 4)
    served = served_seconds(lines, drill.read_limit)
    result.served_seconds = round(served / drill.in_flight, 2)
    result.over_served = round(result.wall_seconds / result.served_seconds - 1, 4)
    result.mean_in_flight = round(served / result.wall_seconds, 2)
    attempts = read_attempts(drill.out / "root" / layout.REQUESTS_FOLDER)
    result.attempts = dict(sorted(Counter(attempt.state for attempt in attempts).items()))


def served_seconds(lines: list[dict[str, Any]], read_limit: float) -> float:
    """Sum of the times between a request's arrival and its end, each at most the client's patience."""
    arrived: dict[tuple[str, int], float] = {}
    total = 0.0
    for line in lines:
        name = (line["body_sha256"], line["arrival"])
        if line["event"] == "arrived":
            arrived[name] = line["unix"]
        else:
            total += min(line["unix"] - arrived.pop(name), read_limit)
    return total + len(arrived) * read_limit


def resent_unasked(outcomes: dict[tuple[str, int], str]) -> list[str]:
    """Requests that came again although they had, or may have had, an answer.

    Allowed after a refusal, and once after an answer that cannot be read.
    """
    by_body: dict[str, list[str]] = defaultdict(list)
    for (body, _), outcome in sorted(outcomes.items()):
        by_body[body].append(outcome)
    problems = []
    for body, found in by_body.items():
        billed = [outcome for outcome in found if outcome not in NOT_BILLED]
        if len(billed) > 2 or (len(billed) == 2 and billed[0] not in UNREADABLE):
            problems.append(f"request {body[:12]} was sent again unasked: {', '.join(found)}")
    return problems


def _outcomes(drill: Drill) -> tuple[dict[str, int], dict[str, int]]:
    table = ScoreTable.read(drill.scores / layout.SCORES)
    states: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for group in table:
        states[group.status] += 1
        if group.status != "scored":
            reasons[f"{group.status}: {(group.rows[0].reason or '').split(':')[0]}"] += 1
    return dict(sorted(states.items())), dict(sorted(reasons.items()))


def _resend(drill: Drill, groups: Path, base_url: str, result: Result) -> None:
    """Send what is in doubt again until nothing is; the server still breaks one request in twenty."""
    for _ in range(MOST_ROUNDS):
        if not _outcomes(drill)[0].get("in_doubt"):
            break
        process = _start(drill, groups, base_url, "--resume", "--resend-in-doubt")
        result.resend_rounds += 1
        if process.wait() != 0:
            result.problems.append(f"--resend-in-doubt ended with exit code {process.returncode}")
            break
    result.groups_after_resend = _outcomes(drill)[0]
    if result.groups_after_resend.get("in_doubt"):
        result.problems.append(f"{result.groups_after_resend['in_doubt']} groups are still in doubt")


def _check_resent(drill: Drill, lines_before: int, result: Result) -> None:
    """The second phase sent only what was in doubt before."""
    lines = server_lines(drill)
    good_before = {line["body_sha256"] for line in lines[:lines_before] if line.get("outcome") == "completed"}
    doubtful = {a.key for a in read_attempts(drill.out / "root" / layout.REQUESTS_FOLDER) if a.state == "in_doubt"}
    sent_later = {line["body_sha256"] for line in lines[lines_before:] if line["event"] == "arrived"}
    # A killed client's request may have been answered into nothing: good for the server, in doubt for us.
    again = len(sent_later & good_before)
    if len(sent_later) > len(doubtful):
        result.problems.append(f"{len(sent_later)} requests were sent again, {len(doubtful)} were in doubt")
    result.server["answered to a killed client, sent again on demand"] = again


def _check_key(drill: Drill, result: Result) -> None:
    """The key stands in no file below the drill's folder."""
    for file in drill.out.rglob("*"):
        if file.is_file() and file.suffix not in (".mp4", ".jpg"):
            result.files_searched += 1
            if KEY.encode() in file.read_bytes():
                result.problems.append(f"the key stands in {file}")


def main() -> int:
    """Parse, drill, print and write the result; exit code 4 when something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="an empty folder")
    parser.add_argument("--groups", type=int, default=Drill.groups)
    parser.add_argument("--delay", type=float, default=Drill.delay, help="seconds that an answer takes")
    parser.add_argument("--read-limit", type=float, help="read time limit of the client; default 1.5 delays")
    parser.add_argument("--in-flight", type=int, default=Drill.in_flight)
    arguments = parser.parse_args()
    drill = Drill(
        arguments.out.absolute(),
        groups=arguments.groups,
        in_flight=arguments.in_flight,
        delay=arguments.delay,
        read_limit=arguments.read_limit or 1.5 * arguments.delay,
    )
    result = run_drill(drill)
    value = {"drill": {**asdict(drill), "out": drill.out.name}, "result": asdict(result)}
    (drill.out / "result.json").write_text(json.dumps(value, indent=2) + "\n")
    print(json.dumps(value, indent=2))
    return 4 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
