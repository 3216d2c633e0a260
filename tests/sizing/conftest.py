"""No trace of one test is another's."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_traces_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test traces is kept in a folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
