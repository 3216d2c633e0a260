"""`bft size cpu` inside an allocation: its GPUs and node are Slurm's word, and Slurm takes the lines that it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.pilots.start_estimate import asked
from slurm_plugin.sandbox import Sandbox

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[3]
STEPS = """
import os, time
import elastic
while True:
    time.sleep(0.03 / len(os.sched_getaffinity(0)))
    elastic.step(samples=4)
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(nodes=1, gpus={"a100": 4}, tuned=True) as cluster:
        yield cluster


def in_allocation(sandbox: Sandbox, folder: Path, request: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command's answer within salloc, on the host of which salloc is called."""
    (folder / "steps.py").write_text(STEPS)
    command = [sys.executable, "-m", "bftd.cli.main", "size", "cpu", "--warmup", "0.3", "--seconds", "1", *words]
    return subprocess.run(
        ["salloc", "--quiet", "-n1", "-pbatch", *request.split(), *command, "--", sys.executable, "steps.py"],
        env={
            **os.environ,
            "SLURM_CONF": str(sandbox.conf),
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(folder / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )


def test_gpus_and_the_share_of_the_node_are_those_of_the_allocation(sandbox: Sandbox, tmp_path: Path) -> None:
    ended = in_allocation(sandbox, tmp_path, "--gres=gpu:a100:1 --cpus-per-task=2", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["confined_by"], found["available_cpus"]) == ("srun", 2)
    assert (found["demand"]["gpus"], found["demand"]["cpus"]) == (1, 2)
    node = sandbox.client().nodes()["n1"]
    assert found["share"] == {"cpus": node.cpus / 4, "memory_bytes": node.memory_bytes / 4}
    lines = [line["text"] for line in found["sbatch"]]
    assert lines[0] == "#SBATCH --cpus-per-gpu=2"
    said = asked(sandbox.client(), ["#SBATCH --partition=batch", "#SBATCH --gres=gpu:a100:1", *lines])
    assert said.taken, said.words


def test_an_allocation_with_fewer_cpus_than_asked_ends_in_one_line(sandbox: Sandbox, tmp_path: Path) -> None:
    ended = in_allocation(sandbox, tmp_path, "--cpus-per-task=1", "--cpus", "1-64")
    assert ended.returncode == 2
    said = [line for line in ended.stderr.splitlines() if not line.startswith("salloc:")]
    assert len(said) == 1
    assert "64 CPUs" in said[0]
