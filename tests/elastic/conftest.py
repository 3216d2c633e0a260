"""A cluster a module for the tests that need a real one; after each test it has to be empty."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from slurm_plugin.sandbox import Sandbox
from tests.elastic.cluster import LIMIT_S, TrainerJob, job_processes


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(nodes=4, tuned=True) as cluster:
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
                described.append(f"{process.pid} {' '.join(process.cmdline())[:100]}")
            except psutil.Error:
                continue
        return described

    _wait(left, "processes outlived their trainer")
    _wait(lambda: [f"{node} {state}" for node, state in sandbox.status().items() if state != "IDLE"], "nodes stay busy")


def _wait(left: Callable[[], list[str]], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S / 3
    while found := left():
        assert time.monotonic() < deadline_s, f"{what}: {found}"
        time.sleep(0.05)
