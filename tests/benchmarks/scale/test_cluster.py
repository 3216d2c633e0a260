"""The benchmark of large clusters: its cluster has the size asked for, and it runs from end to end on a small one."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import site_lines
from benchmarks.scale import cluster, many_nodes
from benchmarks.scale.many_drivers import request
from bftd.daemon.sandbox_site import SandboxSite
from slurm_plugin.nodeset import expand
from slurm_plugin.read.settings import options

pytestmark = pytest.mark.slow


class Conf:
    """A slurm.conf in memory."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read_text(self) -> str:
        return self.text

    def write_text(self, text: str) -> None:
        self.text = text


class Printed:
    """A site whose `bft site config` prints what it is told."""

    def __init__(self, printed: str, conf: str) -> None:
        self.conf = Conf(conf)
        self.cluster = SimpleNamespace(conf=self.conf)
        self.ran: list[tuple[str, ...]] = []
        self._printed = printed

    def write_config(self) -> None:
        pass

    def slurm(self, *words: str, timeout_s: float = 15.0) -> str:
        self.ran.append(words)
        return ""

    def bft(self, *words: str) -> subprocess.CompletedProcess[str]:
        self.ran.append(("bft", *words))
        return subprocess.CompletedProcess(words, 0, self._printed, "")


@given(count=st.integers(1, 6000))
def test_the_racks_have_as_many_nodes_as_asked_for(count: int) -> None:
    names = [name for rack in cluster.stand_ins(count) for name in expand(rack)]
    assert len(names) == len(set(names)) == count


@given(number=st.integers(0, 40), nodes=st.integers(1, 5000))
def test_every_trainer_can_run_on_the_nodes_there_are(number: int, nodes: int) -> None:
    made = request(number, nodes)
    assert 1 <= made.sizes.low <= made.sizes.high
    rates = [rate for _, rate in made.curve]
    assert rates == sorted(rates)


@pytest.mark.parametrize("words", [["--nodes=40"], ["--jobs=0"], ["--ticks=0"], ["--many=-1"]])
def test_a_size_that_cannot_be_is_told_at_once(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cluster.main(words)
    assert ended.value.code == 2
    assert "at least" in capsys.readouterr().err


@pytest.mark.cluster
def test_a_large_cluster_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    cluster.main(["--quick", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["nodes"], found["jobs"]) == (200, 100)
    assert found["ticks"] >= 8
    assert 0 < found["tick_s"] <= found["tick_s_max"]
    assert found["rss_bytes"] > 20e6
    # A poll asks four times at least. One may be on its way when the requests are first counted, and lack some. Of
    # eight polls that ask three times there are 24, and up to 3 of the one on its way at the end: fewer than 28.
    assert found["rpc_per_poll"] * found["ticks"] >= 4 * (found["ticks"] - 1)
    assert found["pilots"] > 0
    assert found["api"]["leases"]["count"] > 0
    assert "bf_continue" in "".join(found["site_config"])
    assert {"read_s", "parse_s", "pool_s", "plan_s", "plan_first_s"} <= found.keys()


def test_regression_the_statistics_that_the_daemon_asks_for_are_among_its_requests() -> None:
    row = "\t{:<40}( 2035) count:{:<6} ave_time:90     total_time:181\n"
    kinds = {"REQUEST_NODE_INFO": 30, "REQUEST_STATS_INFO": 2, "REQUEST_PING": 1, "REQUEST_COMPLETE_PROLOG": 9}
    rows = "".join(row.format(kind, count) for kind, count in kinds.items())
    by_type = "Remote Procedure Call statistics by message type\n"
    by_user = "\nRemote Procedure Call statistics by user\n" + row.format("root", 42)
    assert cluster._asked(f"{by_type}{rows}{by_user}") == 33


def test_regression_the_large_site_has_no_settings_of_bftd_s_but_those_that_bft_site_config_prints() -> None:
    own = dict(line.split("=", 1) for line in cluster._CONF.splitlines())
    advised = {"bf_interval", "bf_max_time", "bf_continue", "preempt_youngest_first", "sched_interval"}
    assert not advised & options(own["SchedulerParameters"]).keys()
    assert "KillWait" not in own
    printed = (
        "# why\nSchedulerParameters=bf_max_job_test=7,bf_continue\n# in the line PartitionName=e, set:\n#+ A=1 B=2\n"
    )
    site = Printed(printed, "SchedulerParameters=bf_max_job_test=7\nPartitionName=e Nodes=n1 A=0\n")
    lines = site_lines.follow(cast(SandboxSite, site))
    assert lines == ["SchedulerParameters=bf_max_job_test=7,bf_continue", "A=1 B=2"]
    assert site.conf.text == "SchedulerParameters=bf_max_job_test=7,bf_continue\nPartitionName=e Nodes=n1 A=1 B=2\n"
    assert site.ran == [("bft", "site", "config", "--file", "slurm.conf"), ("scontrol", "reconfigure")]


@pytest.mark.cluster
def test_real_nodes_are_harvested_and_given_back_at_once() -> None:
    found = many_nodes.harvest_many(nodes=4, rounds=1, log=lambda text: None)
    assert (found["nodes"], found["preempted"], found["lockouts"], found["left_over"]) == (4, [4], 0, 0)
    assert found["give_back_s"]["count"] >= 4
    assert found["idle_to_ready_s"]["median"] > 0
