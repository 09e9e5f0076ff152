"""A page in a headless Chromium that a test drives, over the browser's own protocol."""

import asyncio
import json
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

from tests.support.browser import CHROMIUM

PATIENCE_S = 60.0
"""Longest wait for what a page should come to; a loaded machine is slow."""


class LivePage:
    """An open page: expressions are evaluated in it, keys pressed, complaints collected."""

    def __init__(self, socket: WebSocketClientConnection):
        self.complaints: list[str] = []
        self._socket, self._number = socket, 0

    async def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        await self._socket.write_message(json.dumps(message))
        while True:
            reply = json.loads(str(await self._socket.read_message()))
            self._listen(reply)
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return dict(reply["result"])

    def _listen(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        is_said = event.get("method") == "Runtime.consoleAPICalled"
        if is_said and parameters["type"] in ("error", "warning"):
            self.complaints.append(str(parameters["args"]))

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        result = await self.command("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    async def press(self, key: str) -> None:
        """Press and release a key where the page has its focus."""
        for kind in ("keyDown", "keyUp"):
            await self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def until(self, condition: str) -> None:
        """Wait for a condition in JavaScript to hold."""
        end = time.monotonic() + PATIENCE_S
        while not await self.evaluate(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            await asyncio.sleep(0.1)


@asynccontextmanager
async def live_page(address: str, profile: Path) -> AsyncIterator[LivePage]:
    """Open an address in a new browser with an empty profile; both end with the block."""
    browser = subprocess.Popen(
        [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
        ],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        socket = await websocket_connect(await _debugger(profile), max_message_size=2**26)
        page = LivePage(socket)
        await page.command("Runtime.enable")
        await page.command("Page.navigate", url=address)
        yield page
        socket.close()
    finally:
        browser.terminate()
        browser.wait(10)


async def _debugger(profile: Path) -> str:
    """Address of the debugger of the browser's first tab, once it listens."""
    written, end = profile / "DevToolsActivePort", time.monotonic() + PATIENCE_S
    while not (written.exists() and len(written.read_text().split()) > 1):
        assert time.monotonic() < end, "the browser did not start"
        await asyncio.sleep(0.1)
    port = written.read_text().split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as reply:
        tabs = json.load(reply)
    return str(next(tab for tab in tabs if tab["type"] == "page")["webSocketDebuggerUrl"])
