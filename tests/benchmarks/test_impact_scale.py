"""The benchmark of large clusters: its cluster has the size asked for, and it runs from end to end on a small one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import impact_many, impact_scale
from benchmarks.scale_drivers import request
from slurm_plugin.nodeset import expand


@given(count=st.integers(1, 6000))
def test_the_racks_have_as_many_nodes_as_asked_for(count: int) -> None:
    names = [name for rack in impact_scale.stand_ins(count) for name in expand(rack)]
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
        impact_scale.main(words)
    assert ended.value.code == 2
    assert "at least" in capsys.readouterr().err


@pytest.mark.cluster
def test_a_large_cluster_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    impact_scale.main(["--quick", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["nodes"], found["jobs"]) == (200, 100)
    assert found["ticks"] >= 3
    assert 0 < found["tick_s"] <= found["tick_s_max"]
    assert found["rss_bytes"] > 20e6
    assert found["rpc_per_poll"] >= 4
    assert found["pilots"] > 0
    assert found["api"]["leases"]["count"] > 0
    assert {"read_s", "parse_s", "pool_s", "plan_s", "plan_first_s"} <= found.keys()


@pytest.mark.cluster
def test_real_nodes_are_harvested_and_given_back_at_once() -> None:
    found = impact_many.harvest_many(nodes=4, rounds=1, log=lambda text: None)
    assert (found["nodes"], found["preempted"], found["lockouts"], found["left_over"]) == (4, [4], 0, 0)
    assert found["give_back_s"]["count"] >= 4
    assert found["idle_to_ready_s"]["median"] > 0
