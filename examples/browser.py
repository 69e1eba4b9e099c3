"""A real browser for the report's pages: pictures of a page at three widths, light and dark; clicks for the tests.

    python examples/browser.py demo/report/report.html --out shots

It drives a headless Chromium (`apt-get install chromium`, or `CHROMIUM=/path/to/it`) by its own DevTools protocol
over a pipe: no driver, no port, no package.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTHS = (400, 800, 1400)
WALK_DOWN = """(async () => {
const rest = (ms) => new Promise((done) => setTimeout(done, ms));
const go = (top) => scrollTo({top, behavior: "instant"});
for (let y = 0; y < document.body.scrollHeight; y += 700) { go(y); await rest(60); }
go(0); await rest(400); })()"""
"""Galleries are drawn when they come near the window."""
PLACE = """(async () => {
const node = document.querySelector(%s);
if (!node) return null;
node.scrollIntoView({block: "center", behavior: "instant"});
const before = node.getBoundingClientRect();
await new Promise((done) => setTimeout(done, 100));
const box = node.getBoundingClientRect();
if (!node.isConnected || box.x !== before.x || box.y !== before.y) return null;
const x = box.x + box.width / 2, y = box.y + box.height / 2, top = document.elementFromPoint(x, y);
return {x, y, hit: node === top || node.contains(top), top: top ? top.outerHTML.slice(0, 80) : "nothing"};
})()"""
"""The middle of an element, once it stands still, and what a click there would hit."""
PIPE_FDS = 'exec "${@:3}" 3<&"$1" 4>&"$2"'
"""Chromium reads its commands from descriptor 3 and answers on 4."""


def find_chromium() -> str | None:
    """The program named by the variable CHROMIUM, or the first one on the path; None without any."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    return next((found for found in map(shutil.which, NAMES) if found), None)


class BrowserError(RuntimeError):
    """The browser did not do what it was told."""


class Browser:
    """One headless Chromium with one page. Use it in a `with` statement: it ends with the block.

    Args:
        program: path of Chromium.
        downloads: where files that a page saves arrive.
        patience_seconds: how long an answer, or a condition, is waited for.
    """

    def __init__(self, program: str, downloads: Path, patience_seconds: float = 60) -> None:
        self.downloads = downloads
        self._patience = patience_seconds
        self._profile = tempfile.mkdtemp(prefix="sprl-browser-")
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (commands, answers)]
        flags = [
            "--headless=new",
            "--remote-debugging-pipe",
            "--disable-gpu",
            "--no-first-run",
            "--mute-audio",
            "--hide-scrollbars",
        ]
        flags += [
            f"--user-data-dir={self._profile}",
            "--disable-dev-shm-usage",
            "--autoplay-policy=no-user-gesture-required",
        ]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium refuses its sandbox to root
        self._process = subprocess.Popen(
            ["bash", "-c", PIPE_FDS, "pipe", *map(str, high), program, *flags, "about:blank"],
            pass_fds=high,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (commands, answers, *high):
            os.close(fd)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._attach()

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its result.

        Raises:
            BrowserError: the browser refused it, ended, or did not answer in time.
        """
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    def _next(self, waiting_for: str) -> dict[str, Any]:
        end = time.monotonic() + self._patience
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._answers, 1 << 20) if ready else b""
            if not data:
                raise BrowserError(f"{waiting_for}: the browser {'ended' if ready else 'did not answer'}")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        """Keeps what a page asked for and what went wrong in it."""
        method, values = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(values["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.problems.append(values["entry"]["text"])

    def open(self, page: Path) -> None:
        """Opens a file and waits until it was read."""
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.until(f"location.pathname.endsWith({json.dumps(page.name)}) && document.readyState === 'complete'")

    def look(self, width: int, height: int = 900, dark: bool = False) -> None:
        """Sets the window's width and height in pixels, and what the system says of light and dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, promises awaited.

        Raises:
            BrowserError: the expression throws.
        """
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(f"{expression}: {result['exceptionDetails']['exception'].get('description')}")
        return result["result"].get("value")

    def until(self, expression: str) -> Any:
        """Waits for an expression to become true; returns its value.

        Raises:
            BrowserError: it did not in time.
        """
        end = time.monotonic() + self._patience
        while time.monotonic() < end:
            found = self.value(expression)
            if found:
                return found
            time.sleep(0.05)
        raise BrowserError(f"{expression} did not become true in {self._patience:g} s")

    def click(self, selector: str) -> None:
        """Moves the mouse to the middle of the first such element and clicks, as a hand would.

        Raises:
            BrowserError: there is none, or something else covers it.
        """
        place = self.until(PLACE % json.dumps(selector))
        if not place["hit"]:
            raise BrowserError(f"{selector} is covered by {place['top']}")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = "none" if kind == "mouseMoved" else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=place["x"], y=place["y"], button=button, clickCount=1)

    def choose(self, selector: str, option: str) -> None:
        """Chooses an option of a select (its value), as its menu would."""
        self.value(
            f"""(() => {{ const node = document.querySelector({json.dumps(selector)});
            node.value = {json.dumps(option)};
            if (node.value !== {json.dumps(option)}) throw Error("no such option");
            node.dispatchEvent(new Event("change", {{bubbles: true}})); }})()"""
        )

    def type(self, selector: str, text: str) -> None:
        """Clicks a field, writes a text there and leaves it."""
        self.click(selector)
        self.call("Input.insertText", text=text)
        self.value("document.activeElement.blur()")

    def key(self, key: str) -> None:
        """Presses a key: `Escape`, `Enter`, or a character."""
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, file: Path, whole: bool = True) -> None:
        """Writes a PNG of the whole page, or of the window."""
        clip = {}
        if whole:
            width = self.value("window.innerWidth")
            height = self.value("document.documentElement.scrollHeight")
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)["data"]
        file.write_bytes(base64.b64decode(data))

    def overflow(self) -> list[str]:
        """Elements that stick out of the window to the right, outside of boxes that scroll by themselves."""
        found = self.value(
            """[...document.querySelectorAll("body *")].filter((node) => {
            const box = node.getBoundingClientRect();
            if (!box.width || box.right <= document.documentElement.clientWidth + 1) return false;
            for (let up = node.parentElement; up && up !== document.body; up = up.parentElement)
              if (/auto|scroll|hidden/.test(getComputedStyle(up).overflowX)) return false;
            return true;
            }).map((node) => node.outerHTML.slice(0, 100))"""
        )
        return [str(text) for text in found]


def take_pictures(browser: Browser, page: Path, out: Path) -> list[str]:
    """Writes `<width>-<light|dark>.png` per width and theme; returns what sticks out, by picture."""
    out.mkdir(parents=True, exist_ok=True)
    wide = []
    for width in WIDTHS:
        for theme in ("light", "dark"):
            browser.look(width, dark=theme == "dark")
            browser.open(page)
            browser.value(WALK_DOWN)
            browser.picture(out / f"{width}-{theme}.png")
            wide += [f"{width}-{theme}: {text}" for text in browser.overflow()]
    return wide + [f"problem: {text}" for text in browser.problems]


def main(arguments: list[str] | None = None) -> int:
    """Parses, takes the pictures, prints what sticks out; 1 when something does, 2 without a browser."""
    parser = argparse.ArgumentParser(description="Pictures of a page at three widths, light and dark.")
    parser.add_argument("page", type=Path, help="an HTML file")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    options = parser.parse_args(arguments)
    program = find_chromium()
    if program is None:
        print("no Chromium found: apt-get install chromium, or set CHROMIUM", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as downloads, Browser(program, Path(downloads)) as browser:
        problems = take_pictures(browser, options.page, options.out)
    print("\n".join(problems) if problems else f"{2 * len(WIDTHS)} pictures in {options.out}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
