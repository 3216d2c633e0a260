"""The impact benchmark itself, on a very short stream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.cluster
def test_a_quick_run_harvests_beside_regular_jobs_and_is_not_repeated(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.impact", "--quick", "--recipes", "tuned", "--json"]
    done = subprocess.run(
        [*words, "--folder", str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=2 * STILL_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["tuned"]
    assert found["pairs"] == 1
    assert found["never_started"] == 0
    assert found["pilots_per_run"] > 0
    assert found["harvested_share"] > 0
    assert found["preempt_to_start_s"]["jobs"] > 0
    assert 3.0 < found["rpc_per_poll"] < 6.0  # in a dozen polls a half one weighs

    again = subprocess.run(
        [*words, "--folder", str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=STILL_S,
        check=False,
    )
    assert json.loads(again.stdout)["tuned"] == found
