"""The benchmark of large clusters: its cluster has the size asked for, and it runs from end to end on a small one."""

from __future__ import annotations

import json

import pytest

from benchmarks.scale import cluster, many_nodes
from slurm_plugin.read.settings import options

pytestmark = pytest.mark.slow


@pytest.mark.cluster
def test_a_large_cluster_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    cluster.main(["--quick", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["nodes"], found["jobs"]) == (200, 100)
    assert found["ticks"] >= 8
    assert 0 < found["tick_s"] <= found["tick_s_max"]
    assert len(found["samples"]) == found["ticks"]
    assert "missed" in cluster.table(found | {"tick_s_max": cluster.TICK_S + 0.1})
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


def test_regression_the_large_site_has_no_settings_that_bft_site_config_prints_of_its_own() -> None:
    own = dict(line.split("=", 1) for line in cluster._CONF.splitlines())
    advised = {"bf_interval", "bf_max_time", "bf_continue", "preempt_youngest_first", "sched_interval"}
    assert not advised & options(own["SchedulerParameters"]).keys()
    assert "KillWait" not in own


@pytest.mark.cluster
def test_real_nodes_are_harvested_and_given_back_at_once() -> None:
    found = many_nodes.harvest_many(nodes=4, rounds=1, log=lambda text: None)
    assert (found["nodes"], found["preempted"], found["lockouts"], found["left_over"]) == (4, [4], 0, 0)
    assert found["give_back_s"]["count"] >= 4
    assert found["idle_to_ready_s"]["median"] > 0
    assert "missed" in many_nodes.table(found | {"left_over": 1})
