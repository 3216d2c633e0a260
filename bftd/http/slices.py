"""Long work done a slice at a time, so that the loop serves others in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")

# What one slice may take: the next one is made smaller or larger after how long the last one took.
SLICE_S = 0.005
_FIRST = 16
_MOST = 500


async def of(items: Sequence[_T], *, atleast_once: bool = False) -> AsyncIterator[Sequence[_T]]:
    """The items in slices; with `atleast_once` an empty slice where there are none."""
    at, size = 0, _FIRST
    while at < len(items) or (atleast_once and at == 0):
        begun_s = time.perf_counter()
        yield items[at : at + size]
        took_s = max(time.perf_counter() - begun_s, 1e-6)
        at += size
        size = max(1, min(_MOST, 2 * size, int(size * SLICE_S / took_s)))
        if at < len(items):
            await asyncio.sleep(0)
