"""A real cluster with Slurm's own settings becomes one on which nothing is left to say."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.site_lines import applied
from slurm_plugin.sandbox import Sandbox, processes
from slurm_plugin.site import read
from tests.slurm_plugin.plugins import require_compiled
from tests.slurm_plugin.site.sites import WANTED
from tests.slurm_plugin.site.stock import CHECKOUT, StockCluster
from tests.support.programs import run_bft
from tests.support.waiting import until, written

pytestmark = pytest.mark.cluster


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bft-test-") as name:
        path = Path(name).resolve()
        yield path
        processes.end(path / "cluster", grace_s=0, limit_s=10)


def bft(cluster: Sandbox, *words: str) -> subprocess.CompletedProcess[str]:
    return run_bft(*words, env=cluster.env())


def levels(cluster: Sandbox, config: Path) -> tuple[int, dict[str, str]]:
    done = bft(cluster, "site", "check", "--json", "--config", str(config))
    seen: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, {row["name"]: row["level"] for row in seen["findings"]}


def pilot(cluster: Sandbox) -> subprocess.CompletedProcess[str]:
    words = ["salloc", "--immediate=1", "--no-shell", "-p", "elastic", "-N1", "--exclusive", "--mem=0", "-t", "1"]
    return subprocess.run(words, env=cluster.env(), capture_output=True, text=True, timeout=300, check=False)


def test_a_stock_cluster_with_the_printed_lines_has_nothing_left_to_change(folder: Path) -> None:
    require_compiled()
    config = folder / "bftd.toml"
    config.write_text(f'[api]\nsocket = "{folder}/bftd.sock"\n')
    root = folder / "cluster"
    with StockCluster(root) as cluster:
        code, found = levels(cluster, config)
        assert code == 1
        assert {name for name, level in found.items() if level == "must"} == {
            "PreemptType",
            "PreemptMode",
            "harvested partition",
            "driver partition",
        }
        printed = {}
        for file in ("slurm.conf", "plugstack.conf", "job_submit.lua", "bftd.toml"):
            done = bft(cluster, "site", "config", "--config", str(config), "--file", file)
            assert (done.returncode, done.stderr) == (0, "")
            printed[file] = done.stdout

    # the plug-in goes where the line says; a test cannot write to Slurm's own folder, so it names another
    plugin = folder / "spank_bftd.so"
    shutil.copyfile(CHECKOUT / "build" / "plugins" / plugin.name, plugin)
    lines = printed["plugstack.conf"].splitlines()
    stack = "\n".join(f"optional {plugin}" if line.startswith("optional ") else line for line in lines) + "\n"
    files = {"plugstack.conf": stack, "job_submit.lua": printed["job_submit.lua"]}
    config.write_text(config.read_text() + printed["bftd.toml"])
    with StockCluster(root, lambda text: applied(text, printed["slurm.conf"]), files) as cluster:
        code, found = levels(cluster, config)
        assert {name: level for name, level in found.items() if level != "ok"} == {}
        assert code == 0
        batch = read(cluster.client(), WANTED).partitions["batch"]
        assert (batch["PreemptMode"], batch["PriorityTier"]) == ("OFF", "1")
        told = bft(cluster, "site", "check", "--all", "--config", str(config))
        assert told.stdout.splitlines()[-1] == f"{len(found)} ok, 0 advice, 0 must change"
        _is_harvestable(cluster)


def _is_harvestable(cluster: Sandbox) -> None:
    """What the lines are for: a pilot is granted though a regular job is queued, and gives way to it."""
    client = cluster.client()
    script = "#!/bin/sh\nsleep 100\n"
    running = client.submit(["-p", "batch", "-N1", "-t", "5", "--output=/dev/null"], script)
    _until_running(cluster, running)
    queued = client.submit(["-p", "batch", "-N2", "-t", "5", "--output=/dev/null"], script)
    granted = pilot(cluster)
    assert "Granted job allocation" in granted.stderr, granted.stderr
    client.cancel([running], signal="KILL")
    _until_running(cluster, queued)
    assert [job.id for job in client.snapshot().jobs] == [queued]


def _until_running(cluster: Sandbox, job_id: str) -> None:
    def runs() -> bool:
        job = cluster.client().job(job_id)
        return job is not None and job.state == "RUNNING"

    until(f"job {job_id} runs", runs, written(cluster.root / "log"))
