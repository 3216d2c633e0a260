"""The daemon's pool and every driver's guard decide alike on one snapshot."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.config.keys import PoolConfig
from bftd.core.model.domain import PoolView
from bftd.pool.harvest import Harvest
from bftd.pool.membership import PoolMemory, observe
from slurm_plugin.clients.client import CommandResult, SlurmClient
from slurm_plugin.pilots.guard import guard
from slurm_plugin.pilots.pending_reasons import Rules, undated_since
from slurm_plugin.read import parse
from slurm_plugin.read.types import Job, Node, Partition, Reservation, Snapshot
from slurm_plugin.submission import submission
from slurm_plugin.submission.submission import Mode, PilotLauncher, PilotRequest, Placed, Refused
from tests.bftd.builders import PARTITION, Pool, job, members, node, pilot
from tests.slurm_plugin.pending import EXPECTED, KNOWN
from tests.slurm_plugin.read.test_parse import RELEASES, SEPARATOR, recorded
from tests.support.messages import wording

pytestmark = pytest.mark.slow

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
    "is idle, may be lent ",
    "is planned for reservation ",
    "is draining",
    wording("pool.judgement.planned_some_time"),
)


@dataclass(frozen=True)
class Poll:
    """One snapshot: how long after the last; starts in seconds from then, and for how long each job has been there."""

    after_s: float
    flags: dict[str, str]
    jobs: list[tuple[str, str, float | None, tuple[str, ...], float]]
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
    st.sampled_from([1.0, 30.0]) | st.floats(1.0, 1000.0),
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
    """One site's pool, and a driver that looks at each snapshot as well.

    Earmarks are not made: they only keep more from being lent than both have to agree on.
    """

    def __init__(self, min_window_s: float) -> None:
        self.min_window_s = min_window_s
        self.pool = Pool(PoolConfig(debounce_polls=2, min_window_s=min_window_s, earmark=False))
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
                submit_s=float(math.floor(now_s - age_s)),
            )
            for id_, reason, start_s, sched_nodes, age_s in poll.jobs
        ]
        reservations = [
            Reservation("r", (name,), now_s + start_s, now_s + start_s + lasts_s, frozenset())
            for name, start_s, lasts_s in poll.reservations
        ]
        view = self.pool.see(nodes, jobs, reservations=reservations, after_s=poll.after_s)
        return view, self.says(view, jobs, nodes)

    def says(self, view: PoolView, jobs: list[Job], nodes: list[Node]) -> dict[str, str | None]:
        """What the guard says of a pilot on each harvested node, to a driver that was lent it on this snapshot."""
        now_s = self.pool.time_s
        self.since = undated_since(self.since, jobs, now_s)
        return {
            item.name: guard(
                jobs,
                item.name,
                now_s,
                Rules(self.min_window_s, view.looked_s),
                node_partitions=item.partitions,
                pilot_partition=PARTITION,
                since=self.since,
            )
            for item in nodes
            if item.name in HARVESTED
        }

    def _flags(self, poll: Poll, item: Node) -> list[str]:
        return [poll.flags[item.name]] if item.name in poll.flags else []


def eligible_before(poll: Poll) -> Poll:
    """The poll without starts of the very second of the look, of which nobody can say whether the daemon saw it.

    Nor with jobs that came then and are being started, for which drivers keep away from all that these may use.
    """
    jobs = [item for item in poll.jobs if item[2] is None or (item[3] and item[4] > 1.0) or not -1.0 <= item[2] <= 1.0]
    return replace(poll, jobs=jobs)


@settings(deadline=None, max_examples=300)
@given(st.lists(POLLS, min_size=2, max_size=6), ASKED, KEY)
def test_S1b_what_the_daemon_could_see_and_lends_the_guard_places(
    polls: list[Poll], asked: dict[str, tuple[str, ...]], min_window_s: float
) -> None:
    site = Site(min_window_s)
    for poll in map(eligible_before, polls):
        view, says = site.see(poll, asked)
        assert view.hold is None
        assert {name: says[name] for name in members(view)} == dict.fromkeys(members(view))


@settings(deadline=None, max_examples=300)
@given(st.lists(POLLS, min_size=2, max_size=6), ASKED, KEY)
def test_on_one_snapshot_what_the_guard_places_the_pool_lends_but_for_its_own_rules(
    polls: list[Poll], asked: dict[str, tuple[str, ...]], min_window_s: float
) -> None:
    site = Site(min_window_s)
    for poll in polls:
        view, says = site.see(poll, asked)
        for name, said in says.items():
            seen = view.nodes[name]
            if said is None and not seen.in_pool:
                assert seen.why.startswith(POOLS_OWN), seen.why


@pytest.mark.parametrize(
    ("min_window_s", "reason", "in_s", "nodes", "lent"),
    [
        (20.0, "ReqNodeNotAvail", None, (), True),
        (5.0, "Resources", 10.0, ("n1",), True),
        (60.0, "Resources", 40.0, ("n1",), False),
        (20.0, "Resources", 10.0, (), True),
        (20.0, "Resources", 20.0, ("n1",), True),
        (20.0, "JobHeldUser", 0.0, ("n1",), True),
    ],
)
def test_regression_daemon_and_driver_decided_unlike(
    min_window_s: float, reason: str, in_s: float | None, nodes: tuple[str, ...], lent: bool
) -> None:
    site = Site(min_window_s)
    for _ in range(3):
        view, says = site.see(Poll(1.0, {}, [("7", reason, in_s, nodes, 5.0)], []), {"7": ("batch",)})
    assert view.nodes["n1"].in_pool is lent
    assert (says["n1"] is None) is lent


def agrees(reason: str, asked: tuple[str, ...], start_s: float | None, nodes: tuple[str, ...]) -> None:
    """Pool and guard decide alike on every harvested node, of a job that has been there for three polls."""
    site = Site(20.0)
    for _ in range(3):
        view, says = site.see(Poll(1.0, {}, [("7", reason, start_s, nodes, 5.0)], []), {"7": asked})
    for name in HARVESTED:
        lent = view.nodes[name].in_pool
        assert lent is (says[name] is None), (reason, asked, name, view.nodes[name].why, says[name])


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
    STARTS.filter(lambda start_s: start_s is None or not -1.0 <= start_s <= 1.0),
    st.just(()) | st.just(("n1", "n2")),
)
def test_S1b_for_any_text_as_reason_pool_and_guard_decide_alike(
    reason: str, asked: tuple[str, ...], start_s: float | None, nodes: tuple[str, ...]
) -> None:
    agrees(reason, asked, start_s, nodes)


@pytest.mark.parametrize("name", ["queue.txt", "queue-cut.txt"])
@pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)
def test_pool_and_guard_decide_alike_on_each_job_of_a_recorded_queue_of_arrays(release: Path, name: str) -> None:
    for waiting in parse.jobs(recorded(release, name), SEPARATOR):
        if waiting.state == "PENDING":
            agrees(waiting.reason, waiting.partition, None, ())


@pytest.mark.parametrize("asked", [("batch",), ("gpu",), (), (PARTITION,), ("fat",)])
def test_a_job_that_cannot_be_read_holds_a_driver_on_its_partitions_until_the_daemon_looks_again(
    asked: tuple[str, ...],
) -> None:
    site = Site(20.0)
    unknown = parse.unreadable_job("why", "7", ",".join(asked))
    for poll in range(4):
        view = site.pool.see(NODES, [unknown])
        says = site.says(view, [unknown], NODES)
        for name in HARVESTED:
            meant = asked not in ((PARTITION,), ("fat",)) and (not asked or asked[0] in _open(name))
            assert (says[name] is not None) is (meant and poll == 0)
        assert view.hold is None
        assert members(view) == (set(HARVESTED) if poll else set())


def _open(name: str) -> tuple[str, ...]:
    return next(item.partitions for item in NODES if item.name == name)


def test_regression_a_job_waiting_in_one_harvested_partition_kept_drivers_of_another_from_nodes_of_both() -> None:
    both = node("n1", partitions=("batch", PARTITION, "elastic2"))
    waits, regular = job("5_[1-9]", partition=("elastic2",), submit_s=990.0), job("6", submit_s=990.0)
    harvest = Harvest.of(PARTITION, "elastic2")

    def lent(*jobs: Job) -> tuple[bool, bool]:
        config = PoolConfig(debounce_polls=1, earmark=False)
        snapshot = Snapshot(1000.0, {"n1": both}, jobs, (), begun_s=999.5)
        _, view = observe(PoolMemory(), snapshot, config, harvest, {}, {})
        rules = Rules(config.min_window_s, view.looked_s)
        why = guard(jobs, "n1", 1000.0, rules, node_partitions=both.partitions, pilot_partition=PARTITION, since={})
        return view.nodes["n1"].in_pool, why is None

    assert lent(waits) == lent(waits, regular) == (True, True)
    assert lent(replace(waits, submit_s=999.0)) == (True, False), "it may have come while the daemon read the queue"


class Race(SlurmClient):
    """A controller and a clock: each command takes a while, and shows the jobs that were submitted before it ran."""

    def __init__(self, now_s: float, takes_s: float) -> None:
        super().__init__()
        self.now_s, self.takes_s = now_s, takes_s
        self.submitted: list[float] = []
        self.granted_s: float | None = None
        self.looks_s: list[float] = []
        self.ended: list[str] = []

    def clock(self) -> float:
        """The time of the daemon's host, on which the controller runs."""
        return self.now_s

    def pending(self) -> tuple[Job, ...]:
        """The queue as it is half-way."""
        self.now_s += self.takes_s
        self.looks_s.append(self.now_s)
        there = [at_s for at_s in self.submitted if at_s <= self.now_s]
        self.now_s += self.takes_s
        return tuple(job(str(7 + number), submit_s=float(math.floor(at_s))) for number, at_s in enumerate(there))

    def partitions(self) -> dict[str, Partition]:
        """All of n1."""
        return {"batch": Partition("batch", ("n1",), "UP", None)}

    def run(self, command: str, *arguments: str, **_: Any) -> CommandResult:  # type: ignore[override]
        """Grant the node at once."""
        assert command == "salloc"
        self._grant()
        return CommandResult(0, "", "salloc: Granted job allocation 77")

    def submit(self, *_: Any) -> str:
        """Grant the node at once as well."""
        self._grant()
        return "77"

    def own_jobs(self, name: str, partition: str) -> tuple[Job, ...]:
        """The pilot runs."""
        return (pilot("77", "n1"),)

    def cancel(self, job_ids: Iterable[str], signal: str | None = None) -> None:
        """Note who was ended."""
        self.ended += job_ids

    def _grant(self) -> None:
        self.now_s += self.takes_s
        self.granted_s = self.now_s
        self.now_s += self.takes_s


# Milliseconds, since a float of a day in 2001 is no finer than that.
MS = st.integers(0, 5000).map(lambda number: number / 1000)


@pytest.mark.parametrize("mode", ["salloc", "sbatch"])
@settings(deadline=None, max_examples=200)
@given(looked_s=MS, told_after_s=MS, takes_s=st.sampled_from([0.001, 0.02, 0.3]), submitted_s=st.lists(MS, max_size=3))
def test_S1b_a_job_that_came_after_the_daemons_look_and_before_the_grant_is_seen_by_one_look_of_the_driver(
    mode: Mode, looked_s: float, told_after_s: float, takes_s: float, submitted_s: list[float]
) -> None:
    race = Race(1e6 + looked_s + told_after_s, takes_s)
    race.submitted = [1e6 + at_s for at_s in submitted_s]
    launcher = PilotLauncher(race, Rules(20.0, 1e6 + looked_s), mode, race.clock)
    with patch.object(submission, "_SBATCH_LOOK_S", 0.0), patch.object(submission, "_LOOKS_APART_S", 0.0):
        outcome = launcher.place(PilotRequest("n1", PARTITION, 600.0, "bft-pilot", ""), ["agent"], {})
    before_grant = race.now_s if race.granted_s is None else race.granted_s
    unseen = [at_s for at_s in race.submitted if 1e6 + looked_s <= at_s <= before_grant]
    if isinstance(outcome, Placed):
        assert not unseen, "a pilot took a node that the daemon would have left to this job"
        assert not race.ended
    else:
        assert race.ended == ([] if race.granted_s is None else ["77"]), "refused, or withdrawn"
        came = [at_s for at_s in race.submitted if at_s <= race.looks_s[-1]]
        assert any(math.floor(at_s) >= math.floor(1e6 + looked_s) for at_s in came), "for no job that was seen"


def test_a_drivers_launcher_waits_for_a_job_that_cannot_be_read_until_the_daemon_has_looked_too() -> None:
    client = Mock(spec=SlurmClient)
    client.pending.return_value = [parse.unreadable_job("not a number: 'many'", "7", "batch")]
    client.partitions.return_value = {"batch": Partition("batch", ("n1",), "UP", None)}
    client.run.return_value = CommandResult(0, "", "salloc: Granted job allocation 77")
    launcher = PilotLauncher(client, Rules(20.0, 999.0), clock=lambda: 1000.0)
    wanted = PilotRequest("n1", PARTITION, 600.0, "bft-pilot", "")
    said = wording(
        "slurm_plugin.guard.just_come",
        id=7,
        job=wording("slurm_plugin.guard.unreadable", unreadable="not a number: 'many'"),
    )
    assert launcher.place(wanted) == Refused(said)
    launcher.rules = Rules(20.0, 1000.5)
    assert isinstance(launcher.place(wanted), Refused), "in the same second"
    launcher.rules = Rules(20.0, 1001.5)
    assert isinstance(launcher.place(wanted), Placed)
