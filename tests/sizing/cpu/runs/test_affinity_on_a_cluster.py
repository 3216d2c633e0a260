"""Points in an allocation of a real Slurm: each a step with so many CPUs, of which nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.sandbox import Sandbox
from tests.sizing.cpu.commands import alive, command
from tests.support.messages import says
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[4]
STEP = r"step (?P<step>\d+)"
CPUS = min(2, len(os.sched_getaffinity(0)))

# What is asked for is the first word; the rest are its own.
INSIDE = """
import dataclasses, json, os, sys
from sizing.cpu.runs import affinity as confine
from sizing.cpu.runs.measurement import ObservationLimits, Runner
from sizing.base.errors import SizingError

ask = json.loads(sys.argv[1])
try:
    limits = ObservationLimits(timeout_s=ask.get("timeout_s", 30), warmup_s=0.2, least_steps=10, least_s=0.3)
    runner = Runner(tuple(ask["command"]), regex=ask["regex"], gpus=ask["gpus"], limits=limits)
    found = dataclasses.asdict(runner.measure(ask["cpus"]))
    print(json.dumps({**found, "available": runner.available, "host": runner.confinement.host.name}))
except SizingError as error:
    print(json.dumps({"error": str(error)}))
"""


@contextmanager
def one_node(task_plugin: str) -> Iterator[Sandbox]:
    """One node with the CPUs of this machine, and a partition where a job has as many as it asks for."""
    extra = f"TaskPlugin={task_plugin}"
    with Sandbox(nodes=1, service_nodes=0, cpus_per_node=CPUS, tuned=True, extra_conf=extra) as cluster:
        made = "PartitionName=shared Nodes=n1 MaxTime=60 State=UP OverSubscribe=NO"
        answer = cluster.client().run("scontrol", "create", *made.split())
        assert answer.code == 0, answer.complaint
        yield cluster


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with one_node("task/affinity") as cluster:
        yield cluster


def start(
    sandbox: Sandbox, tmp_path: Path, cpus: int, words: tuple[str, ...], gpus: int = 0, **env: str
) -> subprocess.Popen[str]:
    """A profile's point in an allocation of all CPUs."""
    asked = json.dumps({"command": words, "cpus": cpus, "regex": STEP, "gpus": gpus})
    return subprocess.Popen(
        ["salloc", "-Q", "-p", "shared", "-n1", f"-c{CPUS}", "--mem=200", sys.executable, "-c", INSIDE, asked],
        env={**sandbox.env(), "PYTHONPATH": str(ROOT), **env},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )


def inside(sandbox: Sandbox, tmp_path: Path, cpus: int, *words: object, gpus: int = 0, **env: str) -> dict[str, Any]:
    said, _ = start(sandbox, tmp_path, cpus, command(*words), gpus, **env).communicate(timeout=300)
    found: dict[str, Any] = json.loads(said)
    return found


def test_a_step_has_the_cpus_that_were_asked_for_and_the_jobs_own_variables(sandbox: Sandbox, tmp_path: Path) -> None:
    assert not any("was narrowed" in note for note in in_a_step(sandbox, tmp_path)["notes"])


ONE_CPU = "of one CPU there is nothing to take away"


@pytest.mark.skipif(CPUS < 2, reason=ONE_CPU)
def test_where_slurm_confines_no_step_the_guard_does(tmp_path: Path) -> None:
    with one_node("task/none") as cluster:
        assert any("was narrowed" in note for note in in_a_step(cluster, tmp_path)["notes"])


def in_a_step(sandbox: Sandbox, tmp_path: Path) -> dict[str, Any]:
    """A point on one CPU, of which all is as it should be."""
    own = {"PROFILE_TEST": "kept", "SLURM_ARRAY_TASK_ID": "12", "OMP_NUM_THREADS": "7"}
    found = inside(sandbox, tmp_path, 1, "where", tmp_path / "where", **own)
    assert found["kind"] == "srun"
    assert found["available"] == CPUS
    # A hundred steps a second; lines that a busy machine passes on late and together seem to come faster.
    assert 1 < found["rate"]["value"] < 200
    mine, its, *told = (tmp_path / "where").read_text().rsplit(" ", 5)
    assert mine == its
    assert len(json.loads(mine)) == 1
    assert told == ["1", "7", "kept", "12"]
    assert not list(tmp_path.glob("bft-cpu-*"))
    return found


def test_a_progress_bar_comes_through_a_step_line_by_line(sandbox: Sandbox, tmp_path: Path) -> None:
    asked = json.dumps(
        {"command": command("bar", 0.1), "timeout_s": 6, "cpus": 1, "regex": r"(?P<samples>\d+) of 100", "gpus": 0}
    )
    argv = ["salloc", "-Q", "-p", "shared", "-n1", f"-c{CPUS}", "--mem=200", sys.executable, "-c", INSIDE, asked]
    env = {**sandbox.env(), "PYTHONPATH": str(ROOT)}
    said = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True).stdout
    assert 0.5 < json.loads(said)["rate"]["value"] < 20  # ten lines a second, on a busy machine late and together


def test_more_cpus_than_the_allocation_has_is_one_line(sandbox: Sandbox, tmp_path: Path) -> None:
    said = inside(sandbox, tmp_path, CPUS + 1, "train", 600)["error"]
    assert says(said, "sizing.cpu_points.more_than_allocated", cpus=CPUS + 1, there=CPUS, there2=CPUS)


def test_more_gpus_than_the_allocation_has_is_one_line(sandbox: Sandbox, tmp_path: Path) -> None:
    said = inside(sandbox, tmp_path, 1, "train", 600, gpus=1)["error"]
    assert says(said, "sizing.cpu_confine.gpus_not_allocated", gpus=1)


def test_a_command_that_dies_in_a_step_leaves_its_output_in_the_working_folder(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    said = inside(sandbox, tmp_path, 1, "dies")["error"]
    assert "ended with 7 on 1 CPU" in said
    (log,) = tmp_path.glob("bft-cpu-*.log")
    assert str(log) in said
    assert "all is well" in log.read_text()


def test_nothing_of_a_step_is_left_when_we_are_killed(sandbox: Sandbox, tmp_path: Path) -> None:
    allocation = start(sandbox, tmp_path, 1, command("leaves", tmp_path / "a"))
    until("its step runs", lambda: (tmp_path / "a").exists() and (tmp_path / "a").read_text(), str)
    pid = int((tmp_path / "a").read_text())
    profiles = subprocess.run(
        ["ps", "--ppid", str(allocation.pid), "-o", "pid="], capture_output=True, text=True, check=True
    ).stdout.split()
    assert alive(pid)
    for each in profiles:
        os.kill(int(each), 9)
    allocation.communicate(timeout=300)
    until("nothing of it is left", lambda: not alive(pid), str)
