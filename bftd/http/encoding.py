"""Encoding of answers as JSON in pieces, so that other threads run in between."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from aiohttp import web

# The encoder lets no other thread run until it is done: it gets this many items of a list at a time.
_ITEMS = 100


def encoded(answer: Mapping[str, Any]) -> bytes:
    """Return an answer as JSON."""
    return "".join(_parts(answer)).encode()


def answered(body: bytes) -> web.Response:
    """Return a response with a JSON body."""
    return web.Response(body=body, content_type="application/json", charset="utf-8")


def _parts(answer: Mapping[str, Any]) -> Iterator[str]:
    mark = "{"
    for name, value in answer.items():
        yield f"{mark}{json.dumps(name)}: "
        mark = ", "
        if not isinstance(value, list):
            yield json.dumps(value)
            continue
        yield "["
        for at in range(0, len(value), _ITEMS):
            yield (", " if at else "") + json.dumps(value[at : at + _ITEMS])[1:-1]
        yield "]"
    yield "}" if answer else "{}"
