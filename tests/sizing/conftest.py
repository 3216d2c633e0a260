"""Traces, exports and profiles without a start of Python and torch each, for code that does nothing to its process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sizing.child import launch, tracing
from tests.sizing.child import forks, warm


@pytest.fixture(autouse=True)
def no_traces_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test traces is kept in a folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def warm_process() -> Iterator[Any]:
    with warm.traces() as run:
        yield run


@pytest.fixture
def forked(warm_process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `tracing.trace` fork from a process that has torch."""
    monkeypatch.setattr(tracing, "_run", warm_process)


@pytest.fixture(scope="session")
def exporting_process() -> Iterator[Any]:
    with forks.children() as ended:
        yield ended


@pytest.fixture
def exporting(exporting_process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let children of `sizing.child.launch` be forks of a process that has torch and has exported once."""
    monkeypatch.setattr(launch, "ended", exporting_process)
