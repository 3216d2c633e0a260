"""docs/howto/size.md against the programs: its keys are all there are, and its steps can be traced as they stand."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from sizing.base.parallel import Parallel
from sizing.model import tracing
from sizing.model.config import FAMILIES, KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "size.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_table_of_keys_is_complete() -> None:
    rows = [f"| `{key}` | {entry.meaning} |" for key, entry in KEYS.items()]
    assert [row for row in rows if row not in PAGE.splitlines()] == [], "rows that the page's table of keys lacks"
    assert all(f"`{family}`" in PAGE for family in FAMILIES)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("at", "parallel"), [(0, Parallel()), (1, Parallel(fsdp=4))])
def test_a_step_of_the_page_is_traced(tmp_path: Path, at: int, parallel: Parallel) -> None:
    (tmp_path / "step.py").write_text(STEPS[at])
    trace = tracing.trace(f"{tmp_path}/step.py:make_step", 8, parallel, python=sys.executable)
    state = sum(trace.by_category.get(name, 0) for name in ("parameters", "optimizer"))
    whole = 2 * 512 * 2048 * (1 if at == 0 else 4) * 12
    # weights and two moments, of which FSDP leaves a rank its part
    assert whole / parallel.fsdp <= state < 1.1 * whole / parallel.fsdp
