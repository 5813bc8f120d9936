"""Headless Chromium for tests of what people look at, driven over its DevTools pipe: no driver, no further package."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="NOT TESTED: no Chromium on this machine (Debian: apt-get install chromium)"
)

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


class Page:
    """One browser tab. Method names and fields are those of the Chrome DevTools Protocol."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from, self._buffer = to_browser, from_browser, b""
        self._ids, self._session = itertools.count(1), None
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Network.enable")
        self._call("Page.enable")

    def open(self, url: str, *, width: int = 1400, height: int = 1800, dark: bool = False) -> None:
        """Goes to `url`; what the page asks the network for from now on is in `requests`."""
        self.requests = []
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str, limit_s: float = 90) -> Any:
        """The first true value of a JavaScript expression; an AssertionError with the page's text when none comes."""
        deadline = time.monotonic() + limit_s
        while not (value := self.evaluate(script)):
            assert time.monotonic() < deadline, f"never true: {script}\n{self.evaluate('document.body.innerText')}"
            time.sleep(0.2)
        return value

    def screenshot(self, path: Path) -> None:
        """A PNG of the whole page, kept at `path`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        session = {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps({"id": number, "method": method, "params": params, **session}).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._from, 1 << 20)
            assert chunk, "the browser ended"
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A fresh browser with one tab; ended on the way out."""
    assert CHROMIUM is not None
    (commands, to_browser), (from_browser, answers) = os.pipe(), os.pipe()
    # Chromium reads commands from 3 and answers on 4; numbers from 10 on stay clear of both.
    spare = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (commands, answers)]
    renumbered = f'exec "$0" "$@" 3<&{spare[0]} 4>&{spare[1]}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = ["bash", "-c", renumbered, CHROMIUM, *_FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(command, pass_fds=spare, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (commands, answers, *spare):
            os.close(fd)
        try:
            yield Page(to_browser, from_browser)
        finally:
            process.kill()
            process.wait()
            os.close(to_browser)
            os.close(from_browser)
