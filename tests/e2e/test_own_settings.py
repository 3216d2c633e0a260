"""The main job on a cluster with Slurm's own settings."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from tests.e2e.trainers import share_and_give_back
from tests.support.clusters import Clusters

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.torch,
    pytest.mark.horovod,
    pytest.mark.usefixtures("empty_cluster"),
]


@pytest.fixture(scope="module")
def site(clusters: Clusters) -> Iterator[SandboxSite]:
    """A site whose scheduler works as seldom as Slurm's defaults have it."""
    with clusters.site(nodes=4, gpus={"a100": 2}) as site:
        site.start_daemon()
        yield site


def test_the_main_job_asks_nothing_of_slurms_scheduler(site: SandboxSite) -> None:
    shown = site.slurm("scontrol", "show", "config")
    assert re.search(r"(?m)^SchedulerParameters += \(null\)$", shown)
    assert re.search(r"(?m)^KillWait += 30 sec$", shown)
    share_and_give_back(site)
