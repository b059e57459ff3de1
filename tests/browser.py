"""Headless chromium driven through a pipe by the DevTools protocol: clicks, keys, sizes, screenshots."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tests import TIMEOUT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars"),
)


class Browser:
    """Page in a separate browser process, which ends with the ``with`` block.

    Attributes:
        messages: console output and uncaught errors.
    """

    def __init__(self, profile: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        self.messages: list[str] = []
        self._width, self._height, self._dark = width, height, dark
        self._profile = profile

    def __enter__(self) -> "Browser":
        commands_out, commands_in = os.pipe()
        answers_out, answers_in = os.pipe()

        def assign_descriptors() -> None:  # the browser reads commands from 3 and writes answers to 4
            commands, answers = os.dup(commands_out), os.dup(answers_in)
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        command = [str(CHROMIUM), *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, stderr=subprocess.DEVNULL, preexec_fn=assign_descriptors, close_fds=False, start_new_session=True
        )
        os.close(commands_out)
        os.close(answers_in)
        self._out, self._in = os.fdopen(answers_out, "rb", buffering=0), os.fdopen(commands_in, "wb", buffering=0)
        self._buffer, self._number, self._session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(self._width, self._height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if self._dark else "light"}]
        scheme += [{"name": "hover", "value": "hover"}, {"name": "pointer", "value": "fine"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._in.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._in.write(json.dumps(message).encode() + b"\0")
        until = time.monotonic() + TIMEOUT
        while time.monotonic() < until:
            answer = self._read_message(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._record_message(answer)
        raise TimeoutError(method)

    def open(self, page: Path) -> None:
        """Open a page and wait until all its figures are drawn."""
        self.call("Page.navigate", url=page.absolute().as_uri())
        figures = 'typeof PLOTS === "undefined" || document.documentElement.dataset.drawn === "all"'
        self.wait(f'document.readyState === "complete" && ({figures})')

    def evaluate(self, expression: str) -> Any:
        """Evaluate a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + TIMEOUT
        while not self.evaluate(condition):
            assert time.monotonic() < until, f"never true: {condition}"
            time.sleep(0.05)

    def retry(self, act: Callable[[], None], condition: str) -> None:
        """Repeat an action every 5 seconds until an expression is true, as a busy machine may lose a click."""
        until = time.monotonic() + TIMEOUT
        while True:
            act()
            again = time.monotonic() + 5
            while time.monotonic() < again:
                if self.evaluate(condition):
                    return
                time.sleep(0.05)
            assert time.monotonic() < until, f"never true: {condition}"

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page in pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the mouse to a position, and optionally click."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press and release a key."""
        code = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Enter": 13}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path, *, full_page: bool = True) -> None:
        """Write the full page, or its visible part, as PNG."""
        shot = self.call(
            "Page.captureScreenshot", captureBeyondViewport=full_page, **(self._full_page_clip() if full_page else {})
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _full_page_clip(self) -> dict[str, Any]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _read_message(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, *_ = select.select([self._out], [], [], max(0.0, until - time.monotonic()))
            assert ready, "expected an answer of the browser"
            more = self._out.read(1 << 16)
            assert more, "expected a running browser"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _record_message(self, event: dict[str, Any]) -> None:
        event_data = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled":
            self.messages.append(
                " ".join(str(part.get("value", part.get("description"))) for part in event_data["args"])
            )
        if event.get("method") == "Runtime.exceptionThrown":
            self.messages.append(str(event_data["exceptionDetails"].get("exception", event_data["exceptionDetails"])))
        if event.get("method") == "Log.entryAdded" and event_data["entry"]["level"] == "error":
            self.messages.append(event_data["entry"]["text"])
