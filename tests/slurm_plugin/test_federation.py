"""Two real clusters in a federation whose commands show both (FederationParameters=fed_display)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from slurm_plugin.sandbox import Sandbox
from slurm_plugin.sandbox.accounting import accounting, sacctmgr
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.accounting]

FIRST = (
    *("add cluster east", "add cluster west"),
    "add federation both clusters=east,west",
)


class Member(Sandbox):
    """A cluster of the federation; the first one has the slurmdbd of both."""

    def __init__(self, name: str, nodes: int, beside: ExitStack, lines: list[str]) -> None:
        super().__init__(nodes=nodes, tuned=True)
        self._name, self._beside, self._lines = name, beside, lines

    def _write_conf(self, host: str, ports: list[int]) -> None:
        super()._write_conf(host, ports)
        first = not self._lines
        if first:
            self._lines.append(self._beside.enter_context(accounting(self.root, self.env())))
        named = f"ClusterName={self._name}\nFederationParameters=fed_display"
        self.conf.write_text(self._lines[0] + self.conf.read_text().replace("ClusterName=sandbox", named))
        for statement in FIRST if first else ():
            sacctmgr(self.env(), *statement.split())


@pytest.fixture
def federation() -> Iterator[tuple[Sandbox, Sandbox]]:
    lines: list[str] = []
    with ExitStack() as beside, Member("east", 2, beside, lines) as east, Member("west", 1, beside, lines) as west:
        yield east, west


def test_regression_jobs_of_another_cluster_of_a_federation_were_taken_for_this_ones(
    federation: tuple[Sandbox, Sandbox],
) -> None:
    east, west = (cluster.client(timeout_s=10.0) for cluster in federation)
    job_id = east.submit(["--clusters=east", "--output=/dev/null", "--time=3"], "#!/bin/sh\nsleep 100\n")
    until("the job runs in the east", lambda: [job.state for job in east.snapshot().jobs] == ["RUNNING"])
    # the sibling is known a moment after both controllers are up
    until("squeue shows the whole federation", lambda: job_id in west.run("squeue", "--noheader", "--format=%i").out)
    seen = west.snapshot()
    assert seen.jobs == ()
    assert set(seen.nodes) == {"n1", "svc1"}
    assert west.pending() == west.own_jobs("sbatch", "batch") == ()
