"""Shadow mode on a real cluster with real jobs: it reads, and does nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from tests.support import waiting
from tests.support.clusters import Clusters
from tests.support.messages import says

pytestmark = pytest.mark.cluster
# What asks slurmctld for nothing but an answer, and what its own daemons and this test's jobs send it.
READING = {
    "REQUEST_BUILD_INFO",
    "REQUEST_NODE_INFO",
    "REQUEST_JOB_INFO",
    "REQUEST_PARTITION_INFO",
    "REQUEST_RESERVATION_INFO",
    "REQUEST_STATS_INFO",
    "REQUEST_CONFIG",
}
FROM_SLURMD = re.compile("MESSAGE_.*|REQUEST_(COMPLETE_.*|STEP_COMPLETE|PING|PROLOG.*|EPILOG.*|NODE_REGISTRATION.*)")


@pytest.fixture(scope="module")
def site(clusters: Clusters) -> Iterator[SandboxSite]:
    """Four compute nodes and a daemon in shadow mode that polls quickly."""
    config = {"daemon": {"mode": "shadow", "shadow_trainers": 2}, "slurm": {"poll_s": 0.5}}
    with clusters.site(config, nodes=4, tuned=True) as made:
        yield made


def rpcs(site: SandboxSite) -> dict[str, int]:
    """How often slurmctld was sent each type of message, by its own count."""
    text = site.slurm("sdiag").partition("by message type")[2].partition("by user")[0]
    return {name: int(count) for name, count in re.findall(r"^\s+(\w+)\s+\(\s*\d+\)\s+count:(\d+)", text, re.MULTILINE)}


def until(site: SandboxSite, reached: Callable[[], Any]) -> Any:
    """Wait for something to be true."""
    return waiting.until("what is wanted", reached, waiting.written(site.root), site.client.status)


def lent(site: SandboxSite) -> set[str]:
    """The nodes that would be lent."""
    return {node["name"] for node in site.client.status()["nodes"] if node["trainer"]}


def submit(site: SandboxSite, nodes: int, seconds: float) -> str:
    """A regular job."""
    words = ("--partition=batch", f"--nodes={nodes}", "--output=/dev/null", f"--wrap=sleep {seconds}")
    return site.slurm("sbatch", "--parsable", *words)


def lost(shadow: dict[str, Any]) -> int:
    """The nodes that jobs took from trainers, and those that were left to them before: how many of each is chance."""
    return shadow["nodes_taken"] + shadow["nodes_vacated"]


def test_shadow_mode_submits_and_cancels_nothing_while_regular_jobs_come_and_go(site: SandboxSite) -> None:
    earlier = {line.split()[0] for line in site.slurm("scontrol", "show", "jobs", "-o").splitlines()}
    before = rpcs(site)
    site.start_daemon()
    until(site, lambda: len(lent(site)) == 4)
    first = submit(site, nodes=2, seconds=4)
    until(site, lambda: first in site.slurm("squeue", "--noheader", "--format=%i", "--states=RUNNING").split())
    until(site, lambda: len(lent(site)) == 2)
    second = submit(site, nodes=4, seconds=2)
    until(site, lambda: not lent(site))
    until(site, lambda: len(lent(site)) == 4)
    status = site.client.status()
    assert status["mode"] == "shadow"
    assert lost(status["shadow"]) >= 4
    assert 2.0 <= status["shadow"]["slurm_calls_per_poll"] <= 3.0
    assert site.stop_daemon() == 0

    sent = {name: count - before.get(name, 0) for name, count in rpcs(site).items()}
    others = {name for name, count in sent.items() if count and name not in READING and not FROM_SLURMD.match(name)}
    assert others == {"REQUEST_SUBMIT_BATCH_JOB"}, sent
    assert sent["REQUEST_SUBMIT_BATCH_JOB"] == 2, "the two jobs of this test"
    assert sent["REQUEST_STATS_INFO"] >= 2, "one is this test's own"
    jobs = site.slurm("scontrol", "show", "jobs", "-o").splitlines()
    jobs = [line for line in jobs if line.split()[0] not in earlier]
    assert {line.split()[0] for line in jobs} == {f"JobId={first}", f"JobId={second}"}
    assert all("JobState=COMPLETED" in line for line in jobs)


def test_it_goes_on_where_it_stopped_apart_from_a_live_daemon(site: SandboxSite) -> None:
    site.start_daemon()
    shadow = until(site, lambda: site.client.status()["shadow"])
    assert lost(shadow) >= 4
    assert shadow["trace"].endswith("shadow-trace.csv.gz")
    told = site.bft("status")
    assert "SHADOW MODE" in told.stdout.splitlines()[0]
    assert "would start on" in site.bft("explain", "shadow:1").stdout

    registration = {"id": "run-x-1", "name": "mine", "backend": "horovod", "nodes_min": 1, "nodes_max": 4,
                    "partition": "elastic", "user": "root", "held": []}  # fmt: skip
    answer = site.client.request("POST", "/v1/trainers", registration)
    assert answer["leases"] == []
    assert says(answer["note"], "shadow.guests.grants_nothing")
    query = f"epoch={answer['epoch']}&version={answer['version']}&wait_s=1"
    assert site.client.request("GET", f"/v1/trainers/run-x-1/leases?{query}")["leases"] == []
    assert says(site.bft("explain", "run-x-1").stdout, "shadow.guests.grants_nothing")
    assert site.stop_daemon() == 0
    assert (site.root / "ledger.shadow.sqlite").exists()
    assert not (site.root / "ledger.sqlite").exists()
