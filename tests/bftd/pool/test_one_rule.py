"""The daemon's pool and every driver's guard decide alike on one snapshot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.core.domain import PoolView
from bftd.keys import PoolConfig
from bftd.pool.harvest import Harvest
from bftd.pool.judgement import PoolMemory, observe
from slurm_plugin import parse
from slurm_plugin.client import Answer, SlurmClient
from slurm_plugin.guard import guard
from slurm_plugin.pilots import PilotLauncher, PilotRequest, Placed, Refused
from slurm_plugin.types import Job, Node, Partition, Reservation, Snapshot
from slurm_plugin.waiting import SiteRules, may_use, unplanned_since
from tests.bftd.builders import PARTITION, Pool, job, members, node
from tests.slurm_plugin.pending import EXPECTED, KNOWN
from tests.slurm_plugin.test_parse import RELEASES, SEPARATOR, recorded

NODES = [
    node("n1", partitions=("batch", PARTITION)),
    node("n2", partitions=("batch", "gpu", PARTITION)),
    node("n3", partitions=("gpu", PARTITION)),
    node("n4", partitions=(PARTITION,)),
    node("s1", partitions=("bft-driver",)),
]
HARVESTED = [item.name for item in NODES if PARTITION in item.partitions]
PARTITIONS = [("batch",), ("gpu",), ("batch", "gpu"), (PARTITION,), (PARTITION, "batch"), ("fat",), (PARTITION, "fat")]
# A pilot may be refused for its driver's sake alone, so what only the pool decides by must be told apart.
POOLS_OWN = (
    "is idle for ",
    "is planned for reservation ",
    "is draining",
    "is planned for a job whose start is not known",
)


@dataclass(frozen=True)
class Poll:
    """One snapshot: how long after the last, and starts in seconds from then."""

    after_s: float
    flags: dict[str, str]
    jobs: list[tuple[str, str, float | None, tuple[str, ...]]]
    reservations: list[tuple[str, float, float]]


# the array's tasks of one id are as many jobs, and share its partitions
IDS = ["7", "8", "9_[1-4]", "9_[2-4]", "9_1", "10"]
REASONS = st.sampled_from([*EXPECTED.keys(), None]).flatmap(
    lambda kind: st.sampled_from(EXPECTED[kind]) if kind else st.sampled_from(["NeverHeardOf", "Some new text, n3"])
)
STARTS = st.none() | st.sampled_from([-5.0, 0.0, 5.0, 20.0, 60.0]) | st.floats(-100.0, 200.0)
JOBS = st.tuples(
    st.sampled_from(IDS),
    REASONS,
    STARTS,
    st.just(()) | st.sets(st.sampled_from([item.name for item in NODES])).map(tuple),
)
POLLS = st.builds(
    Poll,
    st.sampled_from([1.0, 1.0, 10.0]) | st.floats(0.1, 40.0),
    st.dictionaries(st.sampled_from(HARVESTED), st.sampled_from(["PLANNED", "DRAIN"]), max_size=2),
    st.lists(JOBS, max_size=4, unique_by=lambda item: item[0]),
    st.lists(st.tuples(st.sampled_from(HARVESTED), st.floats(-50.0, 200.0), st.floats(0.0, 90.0)), max_size=2),
)
ASKED = st.fixed_dictionaries({id_: st.sampled_from(PARTITIONS) for id_ in ("7", "8", "9", "10")})
KEY = st.sampled_from([0.0, 20.0]) | st.floats(0.0, 90.0)


class Site:
    """One site's pool, and a driver that looks at each snapshot as well."""

    def __init__(self, rules: SiteRules) -> None:
        self.rules = rules
        self.pool = Pool(PoolConfig(debounce_polls=2, plan_wait_s=rules.plan_wait_s, min_window_s=rules.min_window_s))
        self.since: dict[str, float] = {}

    def see(self, poll: Poll, asked: dict[str, tuple[str, ...]]) -> tuple[PoolView, dict[str, str | None]]:
        """The pool, and what the guard says of each harvested node."""
        now_s = self.pool.time_s + poll.after_s
        nodes = [node(item.name, "IDLE", *self._flags(poll, item), partitions=item.partitions) for item in NODES]
        jobs = [
            job(
                id_,
                partition=asked[id_.partition("_")[0]],
                reason=reason,
                start_s=None if start_s is None else now_s + start_s,
                sched_nodes=sched_nodes,
            )
            for id_, reason, start_s, sched_nodes in poll.jobs
        ]
        reservations = [
            Reservation("r", (name,), now_s + start_s, now_s + start_s + lasts_s, frozenset())
            for name, start_s, lasts_s in poll.reservations
        ]
        view = self.pool.see(nodes, jobs, reservations=reservations, after_s=poll.after_s)
        return view, self.says(jobs, nodes)

    def says(self, jobs: list[Job], nodes: list[Node]) -> dict[str, str | None]:
        """What the guard says of a pilot on each harvested node."""
        now_s = self.pool.time_s
        self.since = unplanned_since(self.since, jobs, now_s, self.rules.min_window_s)
        return {
            item.name: guard(
                jobs,
                item.name,
                now_s,
                self.rules,
                node_partitions=item.partitions,
                pilot_partition=PARTITION,
                since=self.since,
            )
            for item in nodes
            if item.name in HARVESTED
        }

    def _flags(self, poll: Poll, item: Node) -> list[str]:
        return [poll.flags[item.name]] if item.name in poll.flags else []


@settings(deadline=None, max_examples=300)
@given(st.lists(POLLS, min_size=2, max_size=6), ASKED, KEY, KEY)
def test_S1b_on_one_snapshot_what_the_pool_lends_the_guard_places(
    polls: list[Poll], asked: dict[str, tuple[str, ...]], plan_wait_s: float, min_window_s: float
) -> None:
    site = Site(SiteRules(plan_wait_s, min_window_s))
    for poll in polls:
        view, says = site.see(poll, asked)
        if view.hold is None:
            assert {name: says[name] for name in members(view)} == dict.fromkeys(members(view))
        else:
            assert any(said is not None for said in says.values()), view.hold


@settings(deadline=None, max_examples=300)
@given(st.lists(POLLS, min_size=2, max_size=6), ASKED, KEY, KEY)
def test_on_one_snapshot_what_the_guard_places_the_pool_lends_but_for_its_own_rules(
    polls: list[Poll], asked: dict[str, tuple[str, ...]], plan_wait_s: float, min_window_s: float
) -> None:
    site = Site(SiteRules(plan_wait_s, min_window_s))
    for poll in polls:
        view, says = site.see(poll, asked)
        for name, said in says.items():
            seen = view.nodes[name]
            if said is None and not seen.in_pool:
                assert seen.why.startswith(POOLS_OWN), seen.why


@pytest.mark.parametrize(
    ("rules", "reason", "in_s", "nodes", "lent"),
    [
        (SiteRules(30.0, 20.0), "ReqNodeNotAvail", None, (), False),
        (SiteRules(30.0, 5.0), "Resources", 10.0, ("n1",), True),
        (SiteRules(0.0, 20.0), "Resources", None, (), True),
        (SiteRules(30.0, 60.0), "Resources", 40.0, ("n1",), False),
        (SiteRules(30.0, 20.0), "Resources", 10.0, (), False),
        (SiteRules(30.0, 20.0), "Resources", 20.0, ("n1",), True),
        (SiteRules(30.0, 20.0), "JobHeldUser", 0.0, ("n1",), True),
    ],
)
def test_regression_daemon_and_driver_decided_unlike(
    rules: SiteRules, reason: str, in_s: float | None, nodes: tuple[str, ...], lent: bool
) -> None:
    site = Site(rules)
    for _ in range(3):
        view, says = site.see(Poll(1.0, {}, [("7", reason, in_s, nodes)], []), {"7": ("batch",)})
    assert (view.hold is None and view.nodes["n1"].in_pool) is lent
    assert (says["n1"] is None) is lent


def test_S1b_regression_a_driver_that_came_late_waited_again_for_jobs_that_the_daemon_had_waited_out() -> None:
    site = Site(SiteRules(30.0, 20.0))
    waits = Poll(10.0, {}, [("9_[1-4]", "Resources", None, ()), ("7", "JobHeldUser", None, ())], [])
    asked = {"9": ("batch",), "7": ("batch",)}
    for _ in range(3):
        assert site.see(waits, asked)[0].waited_out == ()
    view, _ = site.see(waits, asked)
    assert view.hold is None
    assert view.waited_out == ("9",)

    client = Mock(spec=SlurmClient)
    client.pending.return_value = [job("9_[1-4]", partition=("batch",), reason="Resources")]
    client.partitions.return_value = {"batch": Partition("batch", ("n1",), "UP", None)}
    client.run.return_value = Answer(0, "", "salloc: Granted job allocation 77")
    late = PilotLauncher(client, site.rules, clock=lambda: site.pool.time_s)
    wanted = PilotRequest("n1", PARTITION, 600.0, "bft-pilot", "")
    assert isinstance(late.place(wanted), Refused)
    late.waited_out = frozenset(view.waited_out)
    assert isinstance(late.place(wanted), Placed)
    late.waited_out = frozenset()
    assert isinstance(late.place(wanted), Refused), "what the daemon says no more does not count"


@pytest.mark.parametrize("reason", [*KNOWN, "NeverHeardOf"])
def test_whatever_its_reason_a_job_without_a_plan_holds_both_or_neither(reason: str) -> None:
    site = Site(SiteRules(30.0, 20.0))
    for _ in range(3):
        view, says = site.see(Poll(1.0, {}, [("7", reason, None, ())], []), {"7": ("batch",)})
    assert (view.hold is None) is (says["n1"] is None)


def agrees(reason: str, asked: tuple[str, ...], start_s: float | None, nodes: tuple[str, ...]) -> None:
    """Pool and guard decide alike on every harvested node, of a job that has been there for three polls."""
    site = Site(SiteRules(30.0, 20.0))
    for _ in range(3):
        view, says = site.see(Poll(1.0, {}, [("7", reason, start_s, nodes)], []), {"7": asked})
    for name in HARVESTED:
        lent = view.nodes[name].in_pool and (view.hold is None or not may_use(job("7", partition=asked), _open(name)))
        assert lent is (says[name] is None), (reason, asked, name, view.nodes[name].why, view.hold, says[name])


def _open(name: str) -> tuple[str, ...]:
    return next(item.partitions for item in NODES if item.name == name)


@pytest.mark.parametrize(("start_s", "nodes"), [(None, ()), (5.0, ("n1",))])
def test_S1b_for_every_reason_of_slurm_pool_and_guard_decide_alike(
    start_s: float | None, nodes: tuple[str, ...]
) -> None:
    for reason in [*KNOWN, "NeverHeardOf", "JobHeldUser,Resources", "Resources,JobHeldAdmin"]:
        for asked in (("batch",), ("batch", "gpu")):
            agrees(reason, asked, start_s, nodes)


@settings(deadline=None, max_examples=300)
@given(
    st.text(max_size=60) | st.lists(st.sampled_from([*KNOWN, "n[3,7]", " n4"]), min_size=1, max_size=3).map(",".join),
    st.sampled_from([("batch",), ("gpu",), ("batch", "gpu"), (PARTITION,), ("fat",)]),
    STARTS,
    st.just(()) | st.just(("n1", "n2")),
)
def test_S1b_for_any_text_as_reason_pool_and_guard_decide_alike(
    reason: str, asked: tuple[str, ...], start_s: float | None, nodes: tuple[str, ...]
) -> None:
    agrees(reason, asked, start_s, nodes)


@pytest.mark.parametrize("asked", [("batch",), ("gpu",), (), (PARTITION,), ("fat",)])
def test_a_job_that_cannot_be_read_holds_both_on_its_partitions_for_the_plan_wait_and_nothing_else(
    asked: tuple[str, ...],
) -> None:
    site = Site(SiteRules(30.0, 20.0))
    unknown = parse.unreadable_job("why", "7", ",".join(asked))
    for poll in range(40):
        view = site.pool.see(NODES, [unknown])
        says = site.says([unknown], NODES)
        holds = poll < 30 and asked not in ((PARTITION,), ("fat",))
        assert (view.hold is not None) is holds, poll
        for name in HARVESTED:
            assert (says[name] is not None) is (holds and (not asked or asked[0] in _open(name)))
        assert members(view) == (set(HARVESTED) if poll else set())
    assert view.waited_out == (() if asked in ((PARTITION,), ("fat",)) else ("7",))


def test_a_drivers_launcher_waits_for_a_job_that_cannot_be_read_until_the_daemon_has_waited_it_out() -> None:
    client = Mock(spec=SlurmClient)
    client.pending.return_value = [parse.unreadable_job("not a number: 'many'", "7", "batch")]
    client.partitions.return_value = {"batch": Partition("batch", ("n1",), "UP", None)}
    client.run.return_value = Answer(0, "", "salloc: Granted job allocation 77")
    launcher = PilotLauncher(client, SiteRules(30.0, 20.0), clock=lambda: 1000.0)
    refused = launcher.place(PilotRequest("n1", PARTITION, 600.0, "bft-pilot", ""))
    assert refused == Refused("job 7 waits without a plan (it cannot be read: not a number: 'many')")
    launcher.waited_out = frozenset({"7"})
    assert isinstance(launcher.place(PilotRequest("n1", PARTITION, 600.0, "bft-pilot", "")), Placed)


@pytest.mark.parametrize("name", ["queue.txt", "queue-cut.txt"])
@pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)
def test_pool_and_guard_decide_alike_on_each_job_of_a_recorded_queue_of_arrays(release: Path, name: str) -> None:
    for waiting in parse.jobs(recorded(release, name), SEPARATOR):
        if waiting.state == "PENDING":
            agrees(waiting.reason, waiting.partition, None, ())


def test_regression_a_job_waiting_in_one_harvested_partition_kept_drivers_of_another_from_nodes_of_both() -> None:
    both = node("n1", partitions=("batch", PARTITION, "elastic2"))
    waits, regular = job("5_[1-9]", partition=("elastic2",)), job("6")
    harvest = Harvest.of(PARTITION, "elastic2")
    config = PoolConfig(debounce_polls=1)

    def refused(*jobs: Job) -> str | None:
        snapshot = Snapshot(1000.0, {"n1": both}, jobs, ())
        _, view = observe(PoolMemory(), snapshot, config, harvest, {}, {})
        why = guard(
            jobs,
            "n1",
            1000.0,
            SiteRules(config.plan_wait_s, config.min_window_s),
            node_partitions=both.partitions,
            pilot_partition=PARTITION,
            since=dict.fromkeys(view.waited_out, -math.inf),
        )
        assert (why is None) == (view.hold is None)
        return why

    assert refused(waits) is None
    assert "job 6" in (refused(waits, regular) or "")
