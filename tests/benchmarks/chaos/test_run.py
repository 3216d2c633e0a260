"""Half a minute of two kinds of faults on a real cluster with real trainers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chaos.model import RULES
from tests.support.waiting import STILL_S

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.torch, pytest.mark.horovod]

REPOSITORY = Path(__file__).resolve().parents[3]
KINDS = ("kill_worker", "cut_network")


def test_half_a_minute_of_faults_breaks_no_rule(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--net", "--mount", "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("only who may make namespaces, as root may, cuts a node off")
    words = ["--minutes", "0.5", "--seed", "3", "--kinds", ",".join(KINDS), "--json"]
    words += ["--folder", str(tmp_path / "logs")]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=6 * STILL_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["faults"]) == set(KINDS)
    assert found["violations"] == dict.fromkeys(RULES, 0)
    assert found["orphans"] == 0
    assert found["regular_job_delay_max_s"] <= found["bound_s"]
    assert [trainer["name"] for trainer in found["trainers"]] == ["torchrun", "horovod"]
    for trainer in found["trainers"]:
        assert trainer["finished"]
        assert trainer["loss_ok"]
        assert trainer["steps_counted_twice"] == 0
        assert trainer["steps"] > 0
