"""A site a module for the tests that have no other, with the daemon of its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from tests.e2e.trainers import until
from tests.support.clusters import Clusters


@pytest.fixture(scope="module")
def site(clusters: Clusters) -> Iterator[SandboxSite]:
    """A site whose scheduler does not keep a test waiting."""
    with clusters.site(nodes=4, gpus={"a100": 2}, tuned=True) as site:
        site.start_daemon()
        yield site


@pytest.fixture
def empty_cluster(site: SandboxSite) -> Iterator[None]:
    """The daemon runs at the begin of a test, and no job after it."""
    if site.daemon_pid is None:
        site.start_daemon()
    yield
    site.slurm("scancel", "--user=root") if Path.home() == Path("/root") else site.slurm("scancel", "--me")
    until("an empty queue", lambda: not site.slurm("squeue", "-h", "-o", "%i"), site)
