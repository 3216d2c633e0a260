"""The nodes that Slurm itself gives to a job, beside those of the copy of its planner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bftd.pool.backfill.node_choice import NodeNeed, for_plan
from slurm_plugin.read.scheduler import settings
from slurm_plugin.read.settings import parse_config
from slurm_plugin.sandbox import Sandbox
from tests.bftd.pool.backfill.cases import nodes
from tests.support.waiting import until, written

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(nodes=8, tuned=True) as cluster:
        yield cluster


@pytest.mark.parametrize("count", [1, 2])
def test_slurm_gives_a_job_the_nodes_of_the_copy(sandbox: Sandbox, count: int) -> None:
    client = sandbox.client()
    run = "#!/bin/sh\nsleep 500\n"

    def starts(*options: str) -> tuple[str, ...]:
        job_id = client.submit(["--output=/dev/null", "--time=5", *options], run)
        found = until("a start", lambda: (job := client.job(job_id)) and job.nodes, written(sandbox.root / "log"))
        assert found
        return found

    starts("--nodes=2", "--nodelist=n[4,7]")
    free = nodes(0, 1, 2, 4, 5, 7)
    config = parse_config(client.run("scontrol", "show", "config").out)
    by_order = settings(config).one_by_order
    expected = for_plan(free, NodeNeed(count), [(1 << 8) - 1], one_by_order=by_order)
    got = starts(f"--nodes={count}")
    assert nodes(*(int(name.removeprefix("n")) - 1 for name in got)) == expected
    client.cancel([job.id for job in client.snapshot().jobs], signal="KILL")
    until("idle nodes", lambda: set(sandbox.status().values()) == {"IDLE"}, written(sandbox.root / "log"))
