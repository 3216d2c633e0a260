"""What earmarks may waste on the whole site, whoever waits and whatever comes of it."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.config.keys import PoolConfig
from bftd.pool.governor import EarmarkAllowance, EarmarkCost, EndedEarmark, Governor
from bftd.pool.harvest import Harvest
from bftd.pool.membership import PoolMemory, observe
from slurm_plugin.read.types import Job, JobRequest, Scheduler, Snapshot
from tests.bftd.builders import PARTITION, job, node, pilot
from tests.support.messages import wording

NODES, POLL_S, HOUR_S = 20, 10.0, 3600.0
CONFIG = PoolConfig(debounce_polls=1)


class Hours:
    """Twenty harvested nodes with a pilot on each that earmarks leave, for jobs that never start and such that do."""

    def __init__(self, cycle_s: float, never: int = 0, toggling: int = 0, honest: int = 0, size: int = 2) -> None:
        self.scheduler = Scheduler(read=True, cycle_s=cycle_s)
        self.time_s = 100_000.0
        self.memory = PoolMemory()
        self.lent = {f"n{index}": f"7{index:03}" for index in range(NODES)}
        # as with --switches or licences: they fit for all that is known
        self.never = [self._waits(f"5{user}00{k}", f"u{user}", size) for user in range(1, never + 1) for k in range(2)]
        self.toggling, self.honest = toggling, honest
        self.runs: dict[str, tuple[Job, float]] = {}
        self.wasted_s: deque[tuple[float, float, int]] = deque()
        self.worst = (0.0, 0.0)
        self.honest_earmarks: list[bool] = []

    def _waits(self, id_: str, user: str, count: int) -> Job:
        fields = {"user": user, "node_count": count, "request": JobRequest(exclusive=True, cpus=4 * count)}
        return job(id_, priority=max(1, 10**6 - int(id_)), submit_s=self.time_s, reason="Priority", **fields)

    def run(self, hours: float) -> None:
        for poll in range(int(hours * HOUR_S / POLL_S)):
            self._poll(poll)

    def _poll(self, poll: int) -> None:
        self.time_s += POLL_S
        waits = list(self.never)
        if not poll % 6:  # it is back once a minute, for all nodes, under another id
            waits += [self._waits(f"8{poll}{user}", f"t{user}", NODES) for user in range(self.toggling)]
        if 3 <= poll % 30 < 6:  # it waits for three polls, then it starts and runs for a minute
            waits += [self._waits(f"9{poll // 30}{user}", f"h{user}", 1) for user in range(self.honest)]
        runs = [one for one, until_s in self.runs.values() if self.time_s < until_s]
        busy = self.lent.keys() | {name for one in runs for name in one.nodes}
        nodes = {
            f"n{index}": node(f"n{index}", "IDLE" if f"n{index}" not in busy else "ALLOCATED") for index in range(NODES)
        }
        pilots = [pilot(id_, name, user="eve") for name, id_ in self.lent.items()]
        snapshot = Snapshot(self.time_s, nodes, (*waits, *pilots, *runs), (), scheduler=self.scheduler)
        self.memory, view = observe(self.memory, snapshot, CONFIG, Harvest.of(PARTITION), self.lent, {})
        assert self.memory.earmarks.fault is None
        kept = evicted = 0
        for id_, earmark in view.earmarks.items():
            if id_.startswith("9"):
                continue
            kept += len(earmark.nodes)
            evicted += len(self.lent.keys() & set(earmark.nodes))
        self._count(kept * POLL_S, evicted)
        if poll % 30 == 5:
            for one in (one for one in waits if one.id.startswith("9")):
                earmark = view.earmarks.get(one.id)
                self.honest_earmarks.append(earmark is not None)
                where = earmark.nodes if earmark is not None else tuple(self.lent)[:1]
                started = replace(one, state="RUNNING", nodes=where, start_s=self.time_s, time_limit_s=60.0)
                self.runs[one.id] = started, self.time_s + 60.0
        taken = {name for one, until_s in self.runs.values() if self.time_s + POLL_S < until_s for name in one.nodes}
        free = [name for name, one in view.nodes.items() if one.in_pool and name not in taken]
        self.lent = {name: self.lent.get(name, f"6{poll}{name[1:]}") for name in free}

    def _count(self, kept_s: float, evicted: int) -> None:
        self.wasted_s.append((self.time_s, kept_s, evicted))
        while self.wasted_s[0][0] <= self.time_s - HOUR_S:
            self.wasted_s.popleft()
        kept_share = sum(one for _, one, _ in self.wasted_s) / (NODES * HOUR_S)
        evicted_share = sum(one for _, _, one in self.wasted_s) / NODES
        self.worst = max(self.worst[0], kept_share), max(self.worst[1], evicted_share)


@pytest.mark.parametrize("cycle_s", [5.0, 120.0])
@pytest.mark.parametrize(("never", "toggling"), [(10, 0), (0, 1), (0, 5), (10, 3)])
def test_regression_many_users_wasted_nearly_all_nodes(cycle_s: float, never: int, toggling: int) -> None:
    """Of any hour; before, 60 users kept 95 % with cycles of 120 s, and one had each pilot evicted 60 times."""
    hours = Hours(cycle_s, never, toggling)
    hours.run(1.2)
    kept, evicted = hours.worst
    assert 0.0 < kept <= 0.05
    assert 0.0 < evicted <= 1.0
    assert hours.memory.earmarks.governor.wary


def test_a_job_for_all_nodes_that_never_starts_keeps_them_no_longer_than_all_may_together() -> None:
    hours = Hours(120.0, never=3, size=NODES)
    hours.run(1.2)
    assert 0.02 < hours.worst[0] <= 0.05
    assert hours.worst[1] == 1.0


@pytest.mark.parametrize("others", [{}, {"never": 10, "toggling": 2}])
def test_users_whose_jobs_start_have_earmarks_whoever_else_waits(others: dict[str, int]) -> None:
    hours = Hours(5.0, honest=2, **others)
    hours.memory = replace(
        hours.memory, earmarks=replace(hours.memory.earmarks, governor=Governor(proved={"h0": 2, "h1": 2}))
    )
    hours.run(1.2)
    assert (len(hours.honest_earmarks), sum(hours.honest_earmarks)) == (30, 30)
    assert hours.worst[0] <= 0.05


def test_a_site_whose_jobs_all_start_is_never_wary() -> None:
    hours = Hours(120.0, honest=4)
    for _ in range(6):
        hours.run(0.25)
        assert hours.memory.earmarks.governor.words == ""
    assert all(hours.honest_earmarks)


# The account


def ended(
    user: str = "ann", started: bool = False, node_s: float = 0.0, pilots: int = 0, **fields: object
) -> EndedEarmark:
    plain = EndedEarmark(user, False, started, 1, EarmarkCost(node_s, pilots))
    return replace(plain, **fields)  # type: ignore[arg-type]


def wary(*over: EndedEarmark, before: Governor | None = None, now_s: float = 1000.0) -> Governor:
    return (before or Governor()).after(over, 10, now_s)


def test_what_led_to_no_start_makes_it_wary_of_all_but_those_whose_jobs_start_and_it_says_so() -> None:
    assert not wary(ended(node_s=800.0, pilots=4)).wary
    found = wary(ended(node_s=900.0), ended("bob", started=True, node_s=100.0), ended(node_s=100.0, pilots=5))
    assert (found.wary, found.proved) == (True, {"bob": 1})
    assert found.words == wording("pool.governor.wary", share="91%", pilots="5")
    assert wary(ended(pilots=6)).wary, "of ten nodes"


def test_it_recovers_as_the_hour_forgets() -> None:
    found = wary(ended(node_s=1000.0))
    assert wary(ended(node_s=300.0), before=found, now_s=4500.0).wary
    assert wary(before=found, now_s=4700.0) == Governor()
    assert not wary(ended(node_s=500.0), before=found, now_s=4700.0).wary
    assert wary(before=found.moved(5000.0), now_s=9500.0).wary, "the clock was set"
    assert not wary(before=found, now_s=500.0).wary, "or was set back, and nobody said so"


def test_as_much_may_be_wasted_as_those_cost_that_led_to_starts() -> None:
    well = wary(ended("bob", started=True, node_s=5000.0, pilots=50))
    assert not wary(ended(node_s=3000.0, pilots=30), before=well).wary
    assert wary(ended(node_s=5000.0), before=well).wary


def test_a_user_is_proved_by_more_nodes_that_his_jobs_started_on_than_were_wasted() -> None:
    proved = wary(ended(started=True, nodes=3)).proved
    assert proved == {"ann": 3}
    assert wary(ended(nodes=2), before=Governor(proved=proved)).proved == {"ann": 1}
    assert wary(ended(nodes=3), before=Governor(proved=proved)).proved == {}
    assert wary(ended(started=True, nodes=99)).proved == {"ann": 10}, "no more than the site has"


def test_open_earmarks_count_as_wasted_and_the_first_may_be_as_large_as_the_site() -> None:
    assert EarmarkAllowance(Governor(), 10).takes(False, EarmarkCost(9000.0, 10))
    allowance = EarmarkAllowance(Governor(), 10)
    allowance.spend(False, EarmarkCost(1000.0, 1))
    assert not allowance.takes(False, EarmarkCost(100.0, 0))
    assert not allowance.takes(False, EarmarkCost(10.0, 6))
    assert [allowance.takes(False, EarmarkCost(10.0, 3)) for _ in range(2)] == [True, False]
    assert allowance.takes(True, EarmarkCost(9000.0, 10)), "what others spend is nothing to who is proved"
    assert allowance.takes(False, EarmarkCost()), "an earmark without a harvested node"


EARMARK = st.builds(
    EndedEarmark,
    user=st.sampled_from("abc"),
    proved=st.booleans(),
    started=st.booleans(),
    nodes=st.integers(0, 10),
    cost=st.builds(EarmarkCost, st.floats(0.0, 3000.0), st.integers(0, 10)),
)


@given(st.lists(st.tuples(st.lists(EARMARK, max_size=3), st.floats(0.0, 900.0)), max_size=30))
def test_no_history_makes_it_remember_more_than_an_hour_or_anybody_without_starts(
    history: list[tuple[list[EndedEarmark], float]],
) -> None:
    governor, now_s, starters = Governor(), 1000.0, set()
    for over, after_s in history:
        now_s += after_s
        governor = governor.after(over, 10, now_s)
        starters |= {one.user for one in over if one.started}
        assert governor.proved.keys() <= starters
        assert all(now_s - at_s <= HOUR_S + 60.0 for at_s, _, _ in governor.past)
        assert len(governor.past) <= 4 * 62
        assert bool(governor.words) == governor.wary
