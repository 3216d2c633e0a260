"""The benchmark of large clusters: what it asks Slurm for, and nodes that it harvests and gives back."""

from __future__ import annotations

import pytest

from benchmarks.scale import cluster, many_nodes
from slurm_plugin.read.settings import options

pytestmark = pytest.mark.slow


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
