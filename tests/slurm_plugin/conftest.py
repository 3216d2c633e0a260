"""One small private cluster for all tests of this folder that need a real one, empty at the start of each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.sandbox import Sandbox
from tests.slurm_plugin.plugins import User, require_compiled
from tests.support.clusters import Clusters
from tests.support.waiting import until


@pytest.fixture(scope="module")
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    with clusters.lend(nodes=4, gpus={"a100": 4, "v100": 2}, tuned=True) as cluster:
        yield cluster


@pytest.fixture
def client(sandbox: Sandbox) -> SlurmClient:
    """A client of the cluster after every job of the test before has gone."""
    client = sandbox.client()
    client.cancel([job.id.split("_")[0] for job in client.snapshot().jobs], signal="KILL")
    until("an empty cluster", lambda: not client.snapshot().jobs)
    until("all nodes idle", lambda: set(sandbox.status().values()) == {"IDLE"})
    return client


@pytest.fixture(scope="session")
def site() -> Iterator[SandboxSite]:
    """Another cluster, which has the SPANK plug-in, and a daemon."""
    require_compiled()
    with SandboxSite(nodes=4, plugins=True, tuned=True) as site:
        site.start_daemon()
        yield site


@pytest.fixture(scope="session")
def user(site: SandboxSite) -> User:
    """Somebody without privileges on that cluster."""
    return User.make(site.root / "home", site.env())
