"""A test may be a coroutine: it runs, within what its fixtures open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest


@asynccontextmanager
async def opened(said: list[str]) -> AsyncIterator[list[str]]:
    await asyncio.sleep(0)
    said.append("opened")
    yield said
    said.append("closed")


@pytest.fixture
def door() -> Iterator[AbstractAsyncContextManager[list[str]]]:
    said: list[str] = []
    yield opened(said)
    assert said == ["opened", "in the test", "closed"]


@pytest.mark.parametrize("words", ["in the test"])
async def test_a_coroutine_runs_within_its_fixtures(door: list[str], words: str) -> None:
    await asyncio.sleep(0)
    assert door == ["opened"]
    door.append(words)
