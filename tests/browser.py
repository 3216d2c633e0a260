"""Pages as Debian's Chromium renders them: over the DevTools protocol, without any network but this host's."""

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
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
)
_KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}


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

    async def once() -> Rendered:
        async with browser() as address, tab(address, width=width, height=height, dark=dark, paper=paper) as opened:
            await opened.go(page.resolve().as_uri())
            value = await opened.value(script)
            return Rendered(value, await opened.picture(), opened.requests)

    return asyncio.run(asyncio.wait_for(once(), 300))


@asynccontextmanager
async def tab(
    address: str, *, width: int, height: int = 900, dark: bool = False, paper: bool = False, scripts: bool = True
) -> AsyncIterator[Tab]:
    """A tab of its own of the browser at `address`, with cookies of its own; `scripts` are those of the pages."""
    async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
        link = _Link(socket)
        context = (await link.call("Target.createBrowserContext"))["browserContextId"]
        target = await link.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await link.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        link.session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            await link.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await link.call("Emulation.setEmulatedMedia", media="print" if paper else "screen", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await link.call("Emulation.setDeviceMetricsOverride", **size)
        await link.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        yield Tab(link)
        link.session = None
        await link.call("Target.disposeBrowserContext", browserContextId=context)


class Tab:
    """One tab: what it is told to do, and what it asked for and complained of meanwhile."""

    def __init__(self, link: _Link) -> None:
        self._link = link

    @property
    def requests(self) -> list[str]:
        """All addresses that its pages asked for."""
        return self._link.requests

    @property
    def complaints(self) -> list[str]:
        """What stands in the console: errors of scripts, of the network, and of the page's own policy."""
        return self._link.complaints

    async def go(self, url: str) -> None:
        """Open a page, and wait until it is there."""
        self._link.heard.clear()
        await self._link.call("Page.navigate", url=url)
        await self._link.event("Page.loadEventFired")

    async def value(self, script: str) -> Any:
        """What a script gives that is evaluated in the page; raises RuntimeError."""
        found = await self._link.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        return found["result"].get("value")

    async def press(self, key: str) -> None:
        """Press a key and let it go."""
        told: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        if key == "Enter":
            told["text"] = "\r"
        await self._link.call("Input.dispatchKeyEvent", type="keyDown" if "text" in told else "rawKeyDown", **told)
        await self._link.call("Input.dispatchKeyEvent", type="keyUp", **told)

    async def picture(self) -> bytes:
        """All of the page as PNG."""
        found = await self._link.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])


@asynccontextmanager
async def browser() -> AsyncIterator[str]:
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
        self.complaints: list[str] = []
        self.heard: list[str] = []
        self._socket = socket
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
        while name not in self.heard:
            await self._next()

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._socket.receive_json()
        method, params = message.get("method"), message.get("params", {})
        if method is not None:
            self.heard.append(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(f"{params['entry']['level']}: {params['entry']['text']}")
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))
        return message
