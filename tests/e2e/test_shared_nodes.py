"""A trainer and regular jobs on parts of the same node, all of it real: bftd, Slurm, driver, workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from tests.e2e.trainers import pilots, submit, trainer, until
from tests.support.clusters import Clusters

pytestmark = [pytest.mark.cluster, pytest.mark.torch]


@pytest.fixture
def site(clusters: Clusters) -> Iterator[SandboxSite]:
    with clusters.site(nodes=2, cpus_per_node=2, shared=True, tuned=True) as site:
        site.start_daemon()
        yield site
        site.slurm("scancel", "--user=root") if Path.home() == Path("/root") else site.slurm("scancel", "--me")
        until("an empty queue", lambda: not site.slurm("squeue", "-h", "-o", "%i"), site)


def regular(site: SandboxSite, node: str) -> str:
    words = ["-p", "batch", "-w", node, "-n1", "-c1", "--mem=500M", "-t5", "-o", "/dev/null", "--wrap", "sleep 600"]
    return site.slurm("sbatch", "--parsable", *words).strip()


def test_a_regular_job_costs_a_trainer_nothing_until_it_needs_its_part(site: SandboxSite) -> None:
    job = submit(site, "torchrun", "1-2,share=1:1500M", "--steps=100000")
    until("both nodes work", lambda: trainer(site, job)["working"] == 2, site)
    before = pilots(site)
    first = regular(site, "n1")

    def runs(job_id: str) -> bool:
        return site.slurm("squeue", "-h", "-j", job_id, "-o", "%T").strip() == "RUNNING"

    until("it runs beside a pilot", lambda: runs(first), site)
    step = trainer(site, job)["step"]
    until("training goes on", lambda: trainer(site, job)["step"] > step + 20, site)
    assert pilots(site) == before
    assert trainer(site, job)["working"] == 2
    second = regular(site, "n1")
    until("it has the pilot's part", lambda: runs(second) and trainer(site, job)["working"] == 1, site)
    assert runs(first)
    assert list(pilots(site).values()) == ["n2"]
    told = site.bft("explain", job).stdout
    assert "pilots ask for 1 CPU and 1.46 GiB of a node (share=1:1500M)" in told
    site.slurm("scancel", first, second)
    until("the node is lent again", lambda: trainer(site, job)["working"] == 2, site)
    assert "overdue" not in site.bft("explain", job).stdout
