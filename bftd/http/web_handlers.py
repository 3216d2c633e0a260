"""The web page's handler: made in a thread, and shared for some seconds by all who may see the same."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from bftd import __version__
from bftd.http.asked import SERVICE
from bftd.http.caller import Caller
from bftd.http.gate import caller_of
from bftd.http.overview import Folds, folded
from bftd.http.privacy import Privacy
from bftd.service.live import Service
from bftd.web import page as pages
from bftd.web.page import DEFAULT_HOURS, STEPS, Shown

# So old a page may be, beside what its making takes.
KEPT_S = 5.0
_COMPRESSION = 5


@dataclass(frozen=True, slots=True)
class Made:
    """A page as it is sent, also compressed."""

    body: bytes
    zipped: bytes


class Pages:
    """One page at a time is made, in a thread; who asks for the same meanwhile gets the same."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "page")
        self._folds = Folds()
        self._made: dict[tuple[str, bool, bool, int], tuple[float, asyncio.Future[Made]]] = {}

    async def answer(self, service: Service, caller: Caller, hours: int) -> Made:
        """The page of the last `hours` for this caller."""
        loop = asyncio.get_running_loop()
        now_s, state, private = loop.time(), service.state, service.private
        self._made = {key: made for key, made in self._made.items() if now_s - made[0] < KEPT_S}
        # who has no trainer sees what all others without one see
        owner = any(trainer.user == caller.user for trainer in state.trainers.values())
        key = (caller.user if owner and not caller.admin else "", caller.admin, private, hours)
        made = self._made.get(key)
        if made is None:
            later = service.overview_later(__version__)

            def work() -> Made:
                status = folded(Privacy(caller, state, private).overview(later()), self._folds)
                return _made(Shown(status, _no_history(), None, hours))

            made = self._made[key] = (now_s, loop.run_in_executor(self._thread, work))
        return await asyncio.shield(made[1])

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False, cancel_futures=True)


PAGES: web.AppKey[Pages] = web.AppKey("pages", Pages)


async def page(request: web.Request) -> web.Response:
    """The web page: the last `hours`, 24 where it is none of 1, 6, 24 and 168."""
    asked = request.query.get("hours", "")
    hours = int(asked) if asked in {str(each) for each in HOURS} else HOURS[0]
    made = await request.app[PAGES].answer(request.app[SERVICE], caller_of(request), hours)
    headers = dict(pages.HEADERS)
    body = made.body
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        body, headers["Content-Encoding"] = made.zipped, "gzip"
    return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)


def _made(shown: Shown) -> Made:
    body = pages.render(shown)
    return Made(body, gzip.compress(body, _COMPRESSION, mtime=0))


def _no_history() -> Mapping[str, Any]:
    return {"points": [], "trainers": {}, "windows": []}
