"""A real browser, driven over the pipe of its DevTools: no driver, no download."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
DEADLINE = 60.0  # seconds of one answer


def find() -> str | None:
    """Returns the program, None where none is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a browser without windows, and all that the page reports."""

    def __init__(self, program: str, profile: Path) -> None:
        """Starts the browser.

        Args:
            program: The browser.
            profile: An empty folder for its files.
        """
        self.events: list[dict[str, Any]] = []
        self._number, self._session, self._rest = 0, "", b""
        read, browser_writes = os.pipe()
        browser_reads, write = os.pipe()
        flags = [
            "--headless",
            "--remote-debugging-pipe",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
        ]
        flags += ["--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}"]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []
        command = f'exec "$@" 3<&{browser_reads} 4>&{browser_writes}'  # the browser wants these two numbers
        self._process = subprocess.Popen(
            ["bash", "-c", command, "browser", program, *flags],
            pass_fds=(browser_reads, browser_writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_reads)
        os.close(browser_writes)
        self._read, self._write = read, write

    def __enter__(self) -> Self:
        try:
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.ask(f"{domain}.enable")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the browser."""
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and returns the answer. Keeps events meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, page: Path | str, width: int, *, dark: bool = False) -> None:
        """Opens a page in a window of a width, and waits until it is there."""
        self.events.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """Returns the value of an expression in the page."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Saves a picture of the whole page."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + DEADLINE
        while b"\0" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError(f"the browser said nothing for {DEADLINE} seconds")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message
