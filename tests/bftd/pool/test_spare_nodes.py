"""Idle nodes that are kept free while regular jobs wait (`spare_nodes`)."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.config.keys import PoolConfig
from bftd.core.model.domain import PoolView
from bftd.core.model.events import PoolObserved
from bftd.pool.membership import SPARED
from slurm_plugin.read.types import Job, Node
from tests.bftd.builders import Core, Pool, granted, job, members, node, pilot, registration, revoked
from tests.support.messages import wording

NAMES = [f"n{number}" for number in range(1, 7)]
IDLE = [node(name) for name in NAMES]


# Of more nodes than there are: no earmark can be made for such a job.
LARGE = 9


def queued(pool: Pool, *nodes: str, in_s: float = 900.0, id_: str = "8", **fields: object) -> Job:
    """A job that waits for nodes, does not fit now, and is planned `in_s` after the next snapshot."""
    start_s = pool.time_s + 1 + in_s
    return job(id_, sched_nodes=nodes or ("elsewhere",), start_s=start_s, **{"node_count": LARGE} | fields)


def spares(view: PoolView) -> set[str]:
    """The nodes kept free."""
    return {name for name, seen in view.nodes.items() if seen.why == SPARED}


def sparing(count: int, **keys: float) -> Pool:
    return Pool(PoolConfig(debounce_polls=1, spare_nodes=count, **keys))


def test_while_a_job_waits_for_nodes_so_many_idle_nodes_are_kept_free_and_say_why() -> None:
    pool = sparing(2)
    view = pool.see(IDLE, [queued(pool)])
    assert members(view) == {"n3", "n4", "n5", "n6"}
    assert view.nodes["n1"].why == wording("pool.spares.spared")
    assert not view.nodes["n1"].wanted
    assert spares(view) == {"n1", "n2"}


def test_a_node_that_is_kept_for_a_job_is_not_idle_and_no_spare() -> None:
    pool = sparing(2)
    view = pool.see(IDLE, [queued(pool), queued(pool, id_="9", node_count=1)])
    assert view.earmarks.keys() == {"9"}
    (kept,) = view.earmarks["9"].nodes
    assert view.nodes[kept].why == "is left to " + wording("pool.judgement.job_that_can_start", job=9)
    assert len(spares(view) - {kept}) == 2
    assert members(view) == set(NAMES) - spares(view) - {kept}


def test_without_a_queue_all_are_lent_and_with_fewer_idle_nodes_than_spares_none_is() -> None:
    pool = sparing(2)
    assert members(pool.see(IDLE)) == set(NAMES)
    assert members(pool.see([node("n1"), node("n2", "ALLOCATED")], [queued(pool)])) == set()
    assert members(pool.see(IDLE)) == set(NAMES)


def test_jobs_that_could_not_start_anyway_or_need_no_harvested_node_keep_nothing_free() -> None:
    pool = sparing(2)
    held = [job(str(number), reason=reason) for number, reason in enumerate(["JobHeldUser", "Dependency", "BeginTime"])]
    elsewhere = [job("8", partition=("elastic",)), job("9", partition=("bft-driver",))]
    assert members(pool.see(IDLE, held + elsewhere)) == set(NAMES)
    assert len(spares(pool.see(IDLE, [*held, *elsewhere, queued(pool, reason="Priority")]))) == 2


def test_only_nodes_of_a_partition_that_a_waiting_job_asked_for_are_kept_free() -> None:
    pool = sparing(2)
    nodes = [node("c1"), node("c2"), node("g1", partitions=("gpu", "elastic")), node("g2", "ALLOCATED")]
    assert spares(pool.see(nodes, [queued(pool, partition=("gpu",))])) == {"g1"}
    assert spares(pool.see(nodes, [queued(pool, partition=("gpu", "elastic"))])) == {"g1"}
    assert spares(pool.see(nodes, [queued(pool, partition=("gpu",)), queued(pool, id_="9")])) == {"g1", "c1"}


def test_a_node_under_lease_is_never_taken_back_with_a_pilot_or_without_one_yet() -> None:
    pool = sparing(6)
    nodes = [node("n1", "ALLOCATED"), *IDLE[1:]]
    view = pool.see(nodes, [pilot("71", "n1"), queued(pool)], leased={"n1": "71", "n2": None})
    assert members(view) == {"n1", "n2"}
    assert spares(view) == set(NAMES[2:])


def test_nodes_become_spare_as_pilots_leave_them() -> None:
    pool = sparing(1)
    busy = [node(name, "ALLOCATED") for name in NAMES]
    pilots = {name: f"7{name}" for name in NAMES}
    running = [pilot(id_, name) for name, id_ in pilots.items()]
    assert members(pool.see(busy, [*running, queued(pool)], leased=pilots)) == set(NAMES)
    pilots.pop("n4")
    view = pool.see([*busy[:3], node("n4"), *busy[4:]], [*running[:3], *running[4:], queued(pool)], leased=pilots)
    assert members(view) == set(NAMES) - {"n4"}
    assert spares(view) == {"n4"}


def test_nodes_that_would_not_be_offered_anyway_do_not_count_as_spares() -> None:
    pool = Pool(PoolConfig(debounce_polls=2, spare_nodes=1))
    pool.see([node("n1"), node("n3"), node("n4")])
    view = pool.see(IDLE[:4], [queued(pool, "n3", in_s=10)], quarantined={"n1": 2000.0})
    assert "quarantine" in view.nodes["n1"].why
    assert view.nodes["n2"].why == wording("pool.judgement.idle_for_now")
    assert "planned" in view.nodes["n3"].why
    assert spares(view) == {"n4"}


def test_the_longest_windows_are_kept_free_then_n2_before_n10() -> None:
    pool = sparing(3)
    nodes = [node(name) for name in ("n10", "n9", "n2", "n3")]
    plans = [queued(pool, "n2", in_s=500, id_="7"), queued(pool, "n3", in_s=700)]
    assert spares(pool.see(nodes, plans)) == {"n9", "n10", "n3"}
    assert spares(sparing(1).see(nodes, [queued(pool)])) == {"n2"}


def test_a_spare_stays_one_when_better_nodes_fall_idle_until_no_job_fits_before_its_plan() -> None:
    pool = sparing(1, min_window_s=20)
    start_s = pool.time_s + 1 + 62
    plan = job("8", sched_nodes=("n1",), start_s=start_s, node_count=LARGE)
    assert spares(pool.see(IDLE[:1], [plan])) == {"n1"}
    views = [pool.see(IDLE, [plan]) for _ in range(5)]
    # Slurm's time limits are whole minutes: in a window of 59 s nothing can start
    assert [spares(view) for view in views] == [{"n1"}, {"n1"}, {"n2"}, {"n2"}, {"n2"}]
    assert len({view.version for view in views}) == 2


@dataclass(frozen=True)
class Poll:
    """What one snapshot shows of the six nodes."""

    busy: frozenset[str]
    leased: frozenset[str]
    placed: frozenset[str]
    quarantined: frozenset[str]
    starts_in_s: dict[str, float]
    waits: bool


SOME = st.frozensets(st.sampled_from(NAMES), max_size=3)
POLLS = st.builds(
    Poll, SOME, SOME, SOME, SOME, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 200).map(float)), st.booleans()
)


def shown(poll: Poll, pool: Pool) -> tuple[list[Node], list[Job], dict[str, str | None]]:
    """Nodes, jobs and leases of one poll."""
    pilots = {name: f"7{name}" for name in poll.leased & poll.placed}
    nodes = [node(name, "ALLOCATED" if name in poll.busy or name in pilots else "IDLE") for name in NAMES]
    jobs = [pilot(id_, name) for name, id_ in pilots.items()]
    # Slurm has planned those of the others that it would not start yet, so a plan alone is no queue
    jobs += [
        job(f"5{name}", sched_nodes=(name,), start_s=pool.time_s + 1 + in_s, reason="BeginTime")
        for name, in_s in poll.starts_in_s.items()
    ]
    return nodes, jobs + [queued(pool)] * poll.waits, {name: pilots.get(name) for name in poll.leased}


@settings(deadline=None)
@given(st.lists(POLLS, min_size=1, max_size=8), st.integers(0, 4), st.integers(1, 2))
def test_the_pool_is_as_without_the_key_but_for_just_so_many_idle_nodes_while_a_queue_stands(
    polls: list[Poll], count: int, debounce_polls: int
) -> None:
    plain = Pool(PoolConfig(debounce_polls=debounce_polls))
    pool = Pool(PoolConfig(debounce_polls=debounce_polls, spare_nodes=count))
    before, shown_before, version = set(), set(), 0
    for poll in polls:
        nodes, jobs, leased = shown(poll, pool)
        quarantined = dict.fromkeys(poll.quarantined, 2000.0)
        without = plain.see(nodes, jobs, leased, quarantined=quarantined)
        view = pool.see(nodes, jobs, leased, quarantined=quarantined)
        free = members(without) - leased.keys()
        kept = spares(view)
        assert len(kept) == (min(count, len(free)) if poll.waits else 0)
        assert kept <= free
        assert members(view) == members(without) - kept
        assert {name: seen for name, seen in view.nodes.items() if name not in kept} == {
            name: seen for name, seen in without.nodes.items() if name not in kept
        }
        assert view.hold == without.hold
        windows = {name: seen.window_s for name, seen in view.nodes.items()}
        useful = {name for name in free if windows[name] is None or windows[name] >= 60.0}
        # no flapping: one that was kept free gives way to another only where no job fits before its plan
        assert before & useful <= kept or not poll.waits
        assert kept <= useful or useful <= kept
        assert (view.version != version) == (members(view) != shown_before)
        before, shown_before, version = kept, members(view), view.version


def test_no_lease_is_granted_on_a_spare_none_is_revoked_for_one_and_the_queues_end_lends_it() -> None:
    core, pool = Core(), sparing(2)

    def see(*jobs: Job) -> list[str]:
        """One poll of the idle nodes; what was revoked by it."""
        leased = {item.node: item.job_id for item in core.state.leases.values()}
        view = pool.see(IDLE, jobs, leased)
        core.time_s = pool.time_s
        actions = core.apply(PoolObserved(pool.time_s, view))
        assert not spares(view) & {item.node for item in granted(actions)}
        return [item.node for item in revoked(actions)]

    core.arrive(registration("1", nodes_max=2))
    assert see() == []
    assert len(core.nodes("1")) == 2
    lent = core.nodes("1")
    assert see(queued(pool)) == []
    core.arrive(registration("2", nodes_max=6))  # arrives between two polls: the spares of the last one hold
    assert see(queued(pool)) == []
    assert core.nodes("1") == lent
    assert len(core.nodes("1") | core.nodes("2")) == len(NAMES) - 2
    assert see() == []
    assert core.nodes("1") | core.nodes("2") == set(NAMES)
    # all is lent now: a new queue takes nothing back
    assert see(queued(pool)) == []
    assert core.nodes("1") | core.nodes("2") == set(NAMES)


def test_a_job_that_cannot_be_read_keeps_nothing_free() -> None:
    assert members(sparing(2).see(IDLE, [job("8", unreadable="why")])) == set(NAMES)
