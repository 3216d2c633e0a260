"""A cluster a module for the tests that need a real one; after each test it has to be empty."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import psutil
import pytest

from elastic.script import ranks
from slurm_plugin.sandbox import Sandbox, processes
from tests.elastic.cluster import TrainerJob, job_processes
from tests.support.clusters import Clusters
from tests.support.waiting import until


@pytest.fixture
def alone() -> Iterator[None]:
    """The test's process is the only worker, at step 0, unless it says otherwise."""
    before = ranks.current()
    ranks.use(ranks.World(lambda: 0, lambda: 1, lambda: 0))
    yield
    ranks.use(before)


@pytest.fixture(scope="module")
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    with clusters.lend(nodes=4, tuned=True) as cluster:
        yield cluster


@pytest.fixture
def trainer(sandbox: Sandbox) -> Iterator[TrainerJob]:
    """A trainer to submit; whatever way it ends, it leaves no process and no busy node."""
    job = TrainerJob(sandbox)
    with job.daemon:
        yield job
        if job.job_id:
            job.cancel()
        try:
            _until_clean(sandbox)
        finally:
            jobs = [found.id for found in sandbox.client().snapshot().jobs]
            sandbox.client().cancel(jobs, signal="KILL")
            shutil.rmtree(job.folder, ignore_errors=True)


def _until_clean(sandbox: Sandbox) -> None:
    def left() -> list[str]:
        described = []
        for process in job_processes(sandbox):
            try:
                described.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())[:100]}")
            except psutil.Error:
                continue
        return described

    def busy() -> dict[str, str]:
        return {node: state for node, state in sandbox.status().items() if state != "IDLE"}

    until("processes outlived their trainer", lambda: not left(), left)
    until("nodes stay busy", lambda: not busy(), busy, lambda: _left(sandbox))


def _left(sandbox: Sandbox) -> str:
    """What is left of jobs and steps, zombies too, and what the daemons of the nodes logged last."""
    steps = [psutil.Process(found.pid) for found in processes.of_root(sandbox.root)]
    tree = "\n".join(str(found) for step in steps for found in (step, *step.children(recursive=True)))
    logs = sorted((sandbox.root / "log").glob("slurm*.log"))
    return "\n".join([tree, *(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)])
