"""The stage on which tests play what is around a trainer."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from elastic.driver import trainer
from elastic.driver.pilots import manager
from tests.elastic.driver.stage import OpenStage, Stage, staged


@pytest.fixture
def open_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStage:
    """Takes the trainer's option --elastic."""
    monkeypatch.setattr(trainer, "FAREWELL_S", 0.0)
    monkeypatch.setattr(manager, "_FAREWELL_S", 0.0)
    return partial(staged, tmp_path)


@pytest.fixture
def stage(open_stage: OpenStage) -> AbstractAsyncContextManager[Stage]:
    return open_stage()
