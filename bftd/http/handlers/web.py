"""Handlers for the web pages: made in a thread, and shared for some seconds by all who may see the same."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from bftd import __version__
from bftd.http.auth.caller import Caller
from bftd.http.auth.gate import caller_of
from bftd.http.auth.privacy import Privacy
from bftd.http.handlers.query import node_question
from bftd.http.handlers.status import trainer_question
from bftd.http.handlers.web_data import PageMaker, PageRequest
from bftd.http.request import SERVICE
from bftd.http.response_cache import ResponseCache
from bftd.ledger.reader import LedgerReader
from bftd.service.service import Service
from bftd.web import details
from bftd.web import page as pages
from bftd.web.page import STEPS

# Decisions on the page of a trainer or a node.
DECISIONS_MOST = 100
# A page may be this old, in addition to the time it takes to make.
KEPT_S = 5.0
_COMPRESSION = 5


@dataclass(frozen=True, slots=True)
class SentPage:
    """A page as it is sent, also compressed."""

    body: bytes
    zipped: bytes
    status: int = 200


class Pages:
    """Pages, made one at a time in a thread; callers that ask for the same one meanwhile share it."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._shared = ResponseCache[tuple[str, str, str, bool, bool, int], SentPage]("page")
        self._gathering = PageMaker(ledger)
        # by themselves: whoever looks at many of them must not hold up the main page
        self._shared_details = ResponseCache[tuple[str, str, str, bool, bool, int], SentPage]("details")
        self._gathering_details = PageMaker(ledger)

    async def answer(self, service: Service, caller: Caller, hours: int) -> SentPage:
        """Return this caller's page of the last `hours`; 0: of as many hours as are recorded."""

        def prepare() -> Callable[[], SentPage]:
            asked = _asked(service, caller, hours)
            return lambda: _made(self._gathering, asked)

        return await self._shared.answer(_key(service, caller, hours, "", ""), prepare, KEPT_S)

    async def trainer(self, service: Service, caller: Caller, id_: str, hours: int) -> SentPage:
        """Return the page of one trainer for this caller."""

        def prepare() -> Callable[[], SentPage]:
            asked = _asked(service, caller, hours)
            told = trainer_question(service, _privacy(asked), id_, DECISIONS_MOST) if _is_known(caller) else None

            def make() -> SentPage:
                subject = self._gathering_details.subject(asked, id_, told)
                shown, charts = self._gathering_details.trainer_charts(asked, id_) if subject.told else (hours, "")
                why = f"No trainer {id_} is known: the main page lists those there are."
                return _sent(details.trainer_page(subject, shown, charts), subject, why)

            return make

        return await self._shared_details.answer(_key(service, caller, hours, "trainer", id_), prepare, KEPT_S)

    async def node(self, service: Service, caller: Caller, name: str) -> SentPage:
        """Return the page of one node for this caller."""

        def prepare() -> Callable[[], SentPage]:
            asked = _asked(service, caller, 0)
            told = node_question(service, _privacy(asked), name, DECISIONS_MOST) if _is_known(caller) else None

            def make() -> SentPage:
                subject = self._gathering_details.subject(asked, name, told)
                why = f"No node {name} is harvested: the main page lists those that are."
                return _sent(details.node_page(subject), subject, why)

            return make

        return await self._shared_details.answer(_key(service, caller, 0, "node", name), prepare, KEPT_S)

    def close(self) -> None:
        """Let the threads go."""
        self._shared.close()
        self._shared_details.close()


PAGES: web.AppKey[Pages] = web.AppKey("pages", Pages)


async def page(request: web.Request) -> web.Response:
    """Return the web page of the last `hours` (1, 6, 24 or 168), else of a day or as much of it as was recorded."""
    made = await request.app[PAGES].answer(request.app[SERVICE], caller_of(request), _hours(request))
    return _answered(request, made)


async def trainer(request: web.Request) -> web.Response:
    """Return the web page of one trainer; the `hours` of its charts are as those of the main page."""
    service, caller, id_ = request.app[SERVICE], caller_of(request), request.match_info["id"]
    return _answered(request, await request.app[PAGES].trainer(service, caller, id_, _hours(request)))


async def node(request: web.Request) -> web.Response:
    """Return the web page of one node."""
    service, caller, name = request.app[SERVICE], caller_of(request), request.match_info["name"]
    return _answered(request, await request.app[PAGES].node(service, caller, name))


def _hours(request: web.Request) -> int:
    asked = request.query.get("hours", "")
    return int(asked) if asked in {str(each) for each in STEPS} else 0


def _answered(request: web.Request, made: SentPage) -> web.Response:
    headers = dict(pages.HEADERS)
    body = made.body
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        body, headers["Content-Encoding"] = made.zipped, "gzip"
    return web.Response(status=made.status, body=body, content_type="text/html", charset="utf-8", headers=headers)


def _key(service: Service, caller: Caller, hours: int, kind: str, id_: str) -> tuple[str, str, str, bool, bool, int]:
    # each user sees their own usage
    return (kind, id_, "" if caller.admin else caller.user, caller.admin, service.private, hours)


def _is_known(caller: Caller) -> bool:
    """Whether a caller is identified; others see nothing that the main page does not show."""
    return caller.admin or bool(caller.user)


def _privacy(asked: PageRequest) -> Privacy:
    return Privacy(asked.caller, asked.state, asked.private)


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
        service.history.sample,
    )


def _made(gathering: PageMaker, asked: PageRequest) -> SentPage:
    return _zipped(pages.render(gathering.gather(asked)))


def _sent(body: bytes | None, subject: details.Subject, why: str) -> SentPage:
    """Return a page of one trainer or node, or one that says that it is not known."""
    if body is not None:
        return _zipped(body)
    return _zipped(details.nothing_page(subject.place, subject.status, why), 404)


def _zipped(body: bytes, status: int = 200) -> SentPage:
    return SentPage(body, gzip.compress(body, _COMPRESSION, mtime=0), status)
