"""Traces without a start of Python and torch each, for steps that do nothing to their process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sizing.model import tracing
from tests.sizing.model import warm


@pytest.fixture(scope="session")
def warm_process() -> Iterator[Any]:
    with warm.traces() as run:
        yield run


@pytest.fixture
def forked(warm_process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `tracing.trace` fork from a process that has torch."""
    monkeypatch.setattr(tracing, "_run", warm_process)
