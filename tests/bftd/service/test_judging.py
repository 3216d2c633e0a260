"""A snapshot that is judged beside the loop, which hears drivers meanwhile."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.core.invariants import validate_state
from bftd.core.model.events import Registered
from tests.bftd.builders import lease, registration, reported
from tests.bftd.service.test_clock import ALL, Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """One trainer on six of eight nodes, two of which are busy."""
    found = Host(tmp_path)
    found.train("1")
    for _ in range(3):
        found.poll(BUSY)
        place(found)
    assert {item.node for item in found.service.core.leases.values()} == {*ALL} - {*BUSY}
    return found


BUSY = ALL[:2]


def place(host: Host) -> None:
    """Drivers place what is granted, and end what is asked back."""
    for item in list(host.service.core.leases.values()):
        told: list[Any] = []
        if not item.live:
            host.pilots.pop(item.job_id or "", None)
            told = [lease(item.id, "ended")]
        elif item.job_id is None:
            id_ = f"7{item.id.rpartition('.')[2]}"
            host.pilots[id_] = item.node
            told = [lease(item.id, "placed", job_id=id_), lease(item.id, "working")]
        host.service.apply(reported(host.wall_s, item.trainer, *told))


def come(host: Host, id_: str) -> None:
    host.service.apply(Registered(host.wall_s, registration(id_, nodes_max=8)))


def tick(host: Host) -> None:
    host.wall_s += 1.0
    host.elapsed_s += 1.0


def test_a_node_whose_lease_ends_while_a_snapshot_is_judged_is_not_lent_on_that_snapshots_word(host: Host) -> None:
    host.service.apply(Registered(host.wall_s, registration("2", 1, 8)))
    tick(host)
    judge = host.service.observe_later(host.snapshot(BUSY))
    gone = next(iter(host.service.core.leases.values()))
    host.service.apply(reported(host.wall_s, gone.trainer, lease(gone.id, "ended")))
    judge()()
    assert gone.node not in {item.node for item in host.service.core.leases.values()}
    assert not host.service.core.pool.nodes[gone.node].in_pool
    del host.pilots[gone.job_id or ""]
    for _ in range(2):
        host.poll(BUSY)
    assert gone.node in {item.node for item in host.service.core.leases.values()}, "it is planned for again"


def test_what_is_leased_while_a_snapshot_is_judged_stays_leased(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for _ in range(3):
        host.poll(BUSY)
    tick(host)
    judge = host.service.observe_later(host.snapshot(BUSY))
    host.train("1")
    granted = dict(host.service.core.leases)
    assert granted
    judge()()
    assert host.service.core.leases == granted


def test_a_snapshot_that_was_being_judged_when_the_clock_was_set_is_left_out(host: Host) -> None:
    tick(host)
    judge = host.service.observe_later(host.snapshot((*ALL[2:5], *BUSY)))
    host.wall_s -= 3600.0
    host.service.now()
    before = host.service.core.leases
    judge()()
    assert host.service.core.leases == before
    assert host.service.core.pool.time_s < host.wall_s
    host.poll(BUSY)
    assert host.service.core.pool.time_s == host.wall_s


HAPPENS = st.sampled_from(["place", "end", "register", "nothing"])
BUSY_NODES = st.sets(st.sampled_from(ALL), max_size=4)


@pytest.mark.slow
@settings(max_examples=40)
@given(polls=st.lists(st.tuples(BUSY_NODES, HAPPENS, st.integers(0, 7)), max_size=12))
def test_whatever_happens_while_snapshots_are_judged_the_state_is_sound_and_all_is_lent_in_the_end(
    polls: list[tuple[set[str], str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder))
        for id_ in "12":
            come(host, id_)
        for number, (busy, happens, which) in enumerate(polls):
            tick(host)
            judge = host.service.observe_later(host.snapshot(sorted(busy.difference(host.pilots.values()))))
            held = list(host.service.core.leases.values())
            if happens == "place":
                place(host)
            elif happens == "register":
                come(host, f"3{number}")
            elif happens == "end" and held:
                one = held[which % len(held)]
                host.pilots.pop(one.job_id or "", None)
                host.service.apply(reported(host.wall_s, one.trainer, lease(one.id, "ended")))
            take = judge()
            validate_state(host.service.core)
            take()
            validate_state(host.service.core)
            place(host)
        for _ in range(20):
            host.poll()
            place(host)
        host.service.ledger.close()
        host.service.history.settle()  # it reads the ledger, whose folder is about to go
        assert {item.node for item in host.service.core.leases.values()} == {*ALL}
