"""`--json` of every command that solves, by a process of its own: what an engine prints by itself is not among it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.studies.synergy.test_pack_command import MATRICES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "line",
    [
        *(f"bftd.cli.main solve examples/problem.json --solver {name}" for name in ("highs", "highs-nodes", "gurobi")),
        "studies.synergy pack --matrices MATRICES --mix 50/50/0 --servers 1 --policy opt",
        "studies.crius simulate --count 6 --seeds 1 --policy gavel",
        "studies.synergy simulate --matrices MATRICES --mix 50/50/0 --servers 1 --count 4 --seeds 1 --policy fifo-opt",
    ],
)
def test_standard_output_is_json_and_nothing_else(line: str, tmp_path: Path) -> None:
    if "gurobi" in line and importlib.util.find_spec("gurobipy") is None:
        pytest.skip("gurobipy is not installed")
    matrices = tmp_path / "matrices.json"
    matrices.write_text(json.dumps(MATRICES))
    told = subprocess.run(
        [sys.executable, "-m", *line.replace("MATRICES", str(matrices)).split(), "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)
