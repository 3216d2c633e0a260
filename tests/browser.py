"""A page as Debian's Chromium renders it: over the DevTools protocol, without any network."""

from __future__ import annotations

import asyncio
import base64
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-port=0",
)


@dataclass
class Rendered:
    """What a page looked like: `value` is what the script gave, `requests` all addresses that it asked for."""

    value: Any
    png: bytes
    requests: list[str] = field(default_factory=list)


def executable() -> str | None:
    """Where Chromium is, if it is."""
    return shutil.which("chromium")


def render(
    page: Path, script: str, *, width: int, height: int = 900, dark: bool = False, paper: bool = False
) -> Rendered:
    """Open a file, evaluate a script there, and take a picture of all of the page.

    The window is `width` x `height` CSS pixels; with `paper` the page is laid out as for a printer.
    """
    return asyncio.run(asyncio.wait_for(_render(page, script, (width, height), dark, paper), 90))


async def _render(page: Path, script: str, window: tuple[int, int], dark: bool, paper: bool) -> Rendered:
    width, height = window
    async with (
        _browser() as address,
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=0) as socket,
    ):
        link = _Link(socket)
        target = await link.call("Target.createTarget", url="about:blank")
        attached = await link.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        link.session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            await link.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await link.call("Emulation.setEmulatedMedia", media="print" if paper else "screen", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await link.call("Emulation.setDeviceMetricsOverride", **size)
        await link.call("Page.navigate", url=page.resolve().as_uri())
        await link.event("Page.loadEventFired")
        found = await link.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        picture = await link.call("Page.captureScreenshot", captureBeyondViewport=True)
        return Rendered(found["result"].get("value"), base64.b64decode(picture["data"]), link.requests)


@asynccontextmanager
async def _browser() -> AsyncIterator[str]:
    """A browser of its own with an empty profile; gives the address of its DevTools."""
    found = executable()
    assert found is not None
    profile = tempfile.mkdtemp(prefix="bftd-browser-")
    process = await asyncio.create_subprocess_exec(
        found,
        *_OPTIONS,
        f"--user-data-dir={profile}",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        said = []
        async for line in process.stderr:
            text = line.decode(errors="replace")
            said.append(text)
            if text.startswith("DevTools listening on "):
                yield text.split()[-1]
                break
        else:
            raise RuntimeError("".join(said))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        shutil.rmtree(profile, ignore_errors=True)


class _Link:
    """Calls to the browser in turn; what it tells meanwhile is kept."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.session: str | None = None
        self.requests: list[str] = []
        self._socket = socket
        self._heard: list[str] = []
        self._number = 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        await self._socket.send_json(message)
        while True:
            answer = await self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    async def event(self, name: str) -> None:
        """Wait for something that may have happened already."""
        while name not in self._heard:
            await self._next()

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._socket.receive_json()
        if "method" in message:
            self._heard.append(message["method"])
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
        return message
