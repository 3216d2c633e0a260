"""docs/howto/size.md against the programs: its keys are all there are, and its steps can be traced as they stand."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest

from bftd.cli.size.shared import size_options
from sizing.base.errors import Untraceable
from sizing.base.parallel import Parallel, RankBatch
from sizing.child import tracing
from sizing.model.config import FAMILIES, KEYS
from sizing.model.trace import StepTrace
from tests.sizing.plans_of import Step

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "size.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
STEPS = [block for block in PYTHON if "def make_step" in block]
CALLS = [block for block in PYTHON if "sizing." in block]


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


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_step_of_the_help_is_traced_and_fits_80_columns(tmp_path: Path) -> None:
    (lines,) = re.findall("\x08\n(.*?)\n\n", size_options.STEP, re.DOTALL)
    assert max(map(len, lines.splitlines())) + 2 <= 78
    net = "import torch\n\n\ndef Net():\n    return torch.nn.Linear(512, 16)\n\n\n"
    (tmp_path / "step.py").write_text(net + textwrap.dedent(lines))
    trace = tracing.trace(f"{tmp_path}/step.py:make_step", 8, Parallel(), python=sys.executable)
    assert trace.parameters == 513 * 16


def test_the_calls_of_the_page_print_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trace(step: str, batch: int, parallel: Parallel, **_: object) -> StepTrace:
        (result,) = Step(2, 0.5).measure([RankBatch(parallel, batch)])
        assert not isinstance(result, Untraceable)
        return result

    monkeypatch.setattr(tracing, "trace", trace)
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setenv("PATH", "")  # no Slurm here
    first, second = CALLS
    exec(first, {})
    assert re.fullmatch(r"(#SBATCH --\S+\n)+", capsys.readouterr().out)
    exec(second, {})
    assert re.fullmatch(r"[\d.]+ formula [\d.]+ assumed\n", capsys.readouterr().out)
    assert PYTHON[0] == first
    assert len(first.split()) < 12
