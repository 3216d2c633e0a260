"""One small private cluster for all tests of this folder that need a real one, empty at the start of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bftd.daemon.sandbox_site import SandboxSite
from slurm_plugin.read.client import SlurmClient
from slurm_plugin.sandbox import Sandbox
from tests.slurm_plugin.plugins import User, require_compiled
from tests.support import waiting
from tests.support.clusters import Clusters

Until = Callable[[Callable[[], bool], str], None]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until a condition holds; a test whose condition never does fails by name instead of hanging."""
    waiting.until(what, condition, str)


@pytest.fixture
def until() -> Until:
    return wait_until


@pytest.fixture(scope="module")
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    with clusters.lend(nodes=4, gpus={"a100": 4, "v100": 2}, tuned=True) as cluster:
        yield cluster


@pytest.fixture
def client(sandbox: Sandbox) -> SlurmClient:
    """A client of the cluster after every job of the test before has gone."""
    client = sandbox.client()
    client.cancel([job.id.split("_")[0] for job in client.snapshot().jobs], signal="KILL")
    wait_until(lambda: not client.snapshot().jobs, "an empty cluster")
    wait_until(lambda: set(sandbox.status().values()) == {"IDLE"}, "all nodes idle")
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
