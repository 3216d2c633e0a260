"""The benchmark of the decision core: its polls are polls, and it runs from end to end on a small pool."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import core

pytestmark = pytest.mark.slow


def test_it_measures_every_case_and_the_copying_it_is_asked_to_compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(core, "SIZES", ((2, 100),))
    monkeypatch.setattr(sys, "argv", ["core", "--polls", "11", "--repeats", "1", "--plain-replace", "--json"])
    core.main()
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["explain"], row["plain_replace"]) for row in rows] == [
        (True, False), (True, True), (False, False), (False, True)
    ]  # fmt: skip
    assert all(row["polls"] == 11 and row["polls_per_s"] > 0 for row in rows)


def test_its_pool_changes_in_one_poll_of_ten_and_what_is_idle_is_lent() -> None:
    drivers = core.Drivers(2, 100)
    begin = [core.Registered(drivers.time_s, request) for request in drivers.requests]
    state, _ = core.fold(core.State(), [core.Configured(drivers.time_s, core.Settings()), *begin])
    versions = []
    for number in range(31):
        state, _ = core.fold(state, drivers.poll(state, number))
        versions.append(state.pool.version)
    assert [number for number in range(1, 31) if versions[number] != versions[number - 1]] == [10, 20, 30]
    idle = sum(node.in_pool for node in state.pool.nodes.values())
    lent = sum(lease.live and lease.job_id is not None for lease in state.leases.values())
    assert 0.9 * idle <= lent <= idle < 100
