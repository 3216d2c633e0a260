"""Handler for the web page: made in a thread, and shared for some seconds by all who may see the same."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from bftd import __version__
from bftd.http.auth.caller import Caller
from bftd.http.auth.gate import caller_of
from bftd.http.handlers.web_data import PageMaker, PageRequest
from bftd.http.request import SERVICE
from bftd.http.response_cache import ResponseCache
from bftd.ledger.reader import LedgerReader
from bftd.service.service import Service
from bftd.web import page as pages
from bftd.web.page import STEPS

# A page may be this old, in addition to the time it takes to make.
KEPT_S = 5.0
_COMPRESSION = 5


@dataclass(frozen=True, slots=True)
class SentPage:
    """A page as it is sent, also compressed."""

    body: bytes
    zipped: bytes


class Pages:
    """Pages, made one at a time in a thread; callers that ask for the same one meanwhile share it."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._shared = ResponseCache[tuple[str, bool, bool, int], SentPage]("page")
        self._gathering = PageMaker(ledger)

    async def answer(self, service: Service, caller: Caller, hours: int) -> SentPage:
        """Return this caller's page of the last `hours`; 0: of as many hours as are recorded."""
        # each user sees their own usage
        key = ("" if caller.admin else caller.user, caller.admin, service.private, hours)

        def prepare() -> Callable[[], SentPage]:
            asked = _asked(service, caller, hours)
            return lambda: _made(self._gathering, asked)

        return await self._shared.answer(key, prepare, KEPT_S)

    def close(self) -> None:
        """Let the thread go."""
        self._shared.close()


PAGES: web.AppKey[Pages] = web.AppKey("pages", Pages)


async def page(request: web.Request) -> web.Response:
    """Return the web page of the last `hours` (1, 6, 24 or 168), else of a day or as much of it as was recorded."""
    asked = request.query.get("hours", "")
    hours = int(asked) if asked in {str(each) for each in STEPS} else 0
    made = await request.app[PAGES].answer(request.app[SERVICE], caller_of(request), hours)
    headers = dict(pages.HEADERS)
    body = made.body
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        body, headers["Content-Encoding"] = made.zipped, "gzip"
    return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)


def _asked(service: Service, caller: Caller, hours: int) -> PageRequest:
    """Collect the values of this very moment: only the loop may read them."""
    return PageRequest(
        caller,
        hours,
        service.private,
        service.state,
        service.now(),
        ", ".join(service.partitions),
        service.overview_later(__version__),
        [window.to_json() for window in service.windows()],
    )


def _made(gathering: PageMaker, asked: PageRequest) -> SentPage:
    body = pages.render(gathering.gather(asked))
    return SentPage(body, gzip.compress(body, _COMPRESSION, mtime=0))
