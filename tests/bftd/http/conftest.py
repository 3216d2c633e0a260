"""A served API for tests of its handlers."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.bftd.http.test_api import Served, serving


@pytest.fixture
def served(tmp_path: Path) -> AbstractAsyncContextManager[Served]:
    """A service that listens on `tmp_path`/socket while the test runs."""
    return serving(tmp_path)
