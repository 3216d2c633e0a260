"""A request's body: read within a time limit, and decoded if that blocks the loop only for a moment."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from bftd.base.errors import BftError
from bftd.protocol.bounds import BODY_BYTES_MOST, BODY_VALUES_MOST

# The charsets of JSON; some other ones that Python has take minutes for such a body (idna, punycode).
_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
# A body that comes slowly occupies its connection no longer than this.
BODY_S = 30.0


class BodyRefused(BftError):
    """A refusal of a body, with an HTTP status and one line."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


async def read(request: web.Request) -> bytes:
    """Return a whole body; raises BodyRefused.

    A body that is too large is a wrong request (400): a driver whose batch of reports is refused so sends them one by
    one.
    """
    try:
        return await asyncio.wait_for(request.read(), BODY_S)
    except web.HTTPRequestEntityTooLarge:
        raise BodyRefused(f"a body may have {BODY_BYTES_MOST} bytes: send less at a time") from None
    except ConnectionResetError:
        raise BodyRefused("the connection ended before the body did") from None
    except web.RequestPayloadError:  # such as one that is said to be compressed
        raise BodyRefused("the body cannot be read as its headers say") from None
    except asyncio.TimeoutError:
        raise BodyRefused(f"the body did not come within {BODY_S:g} s", 408) from None


async def decoded(request: web.Request) -> object:
    """Return the decoded JSON of a body; raises BodyRefused."""
    body = await read(request)
    commas = body.count(b",")  # without a comma there is no list, only nesting, which the decoder limits
    if commas and commas + body.count(b"[") + body.count(b"{") > BODY_VALUES_MOST:
        raise BodyRefused(f"a body may have {BODY_VALUES_MOST} values: send less at a time")
    try:
        if (request.charset or "utf-8").lower() not in _CHARSETS:
            raise ValueError(request.charset)
        with _uncollected():
            return json.loads(body.decode())
    except (ValueError, RecursionError):
        raise BodyRefused("the body must be JSON") from None


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile: so many new objects would trigger a scan of everything that the daemon holds."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
