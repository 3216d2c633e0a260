"""The tables of docs/evidence/cpu.md have the headings that the benchmarks print."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.markdown import table
from benchmarks.synergy import loaders, packing, search

PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "cpu.md"


@pytest.mark.parametrize("benchmark", [loaders, packing, search], ids=lambda module: module.__name__)
def test_the_page_has_the_table_that_the_benchmark_prints(benchmark: ModuleType) -> None:
    assert table(benchmark.HEAD, []) in PAGE.read_text(encoding="utf-8")
