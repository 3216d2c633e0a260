"""The rules that always hold, on a simulated cluster where everything goes wrong (hypothesis rule-based machine).

The machine plays Slurm (regular jobs that come, get planned, preempt and go; nodes that drain), the drivers (pilots
placed, refused, crashed, ended late or never) and the operator, all in simulated time; the real pool and core decide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bftd.config.hours import UTC, opening
from bftd.config.keys import PoolConfig
from bftd.core.invariants import validate_state
from bftd.core.model.domain import CancelPilot, Charged, Settings, State
from bftd.core.model.events import (
    ClockSet,
    Configured,
    Event,
    Finished,
    Heard,
    PoolObserved,
    Registered,
    RequestChanged,
    Tick,
)
from bftd.core.model.pause import Pause, Paused, Unpaused
from bftd.core.model.timing import GRANT_SILENT_S, PLACE_WITHIN_S
from bftd.core.step import step
from bftd.pool.harvest import Harvest
from bftd.pool.membership import PoolMemory, observe
from bftd.protocol.registration import Held, Registration
from bftd.protocol.reports import CrashReport, ProgressReport, Report, ResizeReport
from milp import solve
from milp.errors import MilpError
from slurm_plugin.read.types import Job, Node, Snapshot
from tests.bftd.builders import NOW_S, PARTITION, granted, job, lease, node, of, pilot, registration, reported

pytestmark = pytest.mark.slow

NODES = [f"n{number}" for number in range(1, 7)]
CONFIG = PoolConfig(debounce_polls=2, min_window_s=20, vacate_ahead_s=5)
SETTINGS = Settings().changed(pilot_limit_s=600, quarantine_s=60, submit_rate_per_min=20, operator=True)
USERS = ("ann", "bob")
ACCOUNTS = ("", "chem", "bio")
# Few of the caps at once: each is to be the one that binds.
# What an administrator may pause.
PAUSABLE = [
    ("all", ""),
    *(("node", name) for name in NODES[:3]),
    *(("user", user) for user in USERS),
    ("account", "chem"),
]
CAPS = st.fixed_dictionaries(
    {
        "nodes_per_user": st.sampled_from([0, 0, 2, 3, 4]),
        "nodes_per_account": st.sampled_from([0, 0, 1, 3]),
        "trainers_per_user": st.sampled_from([0, 0, 1]),
        "trainers_per_account": st.sampled_from([0, 0, 0, 1, 2]),
    }
)


def active_of(state: State) -> list[str]:
    """The trainers that go on."""
    return [id_ for id_, item in state.trainers.items() if item.active]


class Cluster(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.state = State()
        self.memory = PoolMemory()
        self.drained: set[str] = set()
        self.pilots: dict[str, str] = {}  # job id -> node, as Slurm has them
        self.owners: dict[str, str] = {}  # job id -> trainer
        self.waiting: dict[str, Any] = {}  # regular jobs that are pending
        self.running: dict[str, tuple[str, ...]] = {}  # regular jobs that run
        self.settings = SETTINGS
        self.users: dict[str, str] = {}  # trainer -> its user
        self.accounts: dict[str, str] = {}  # trainer -> the account of its job
        self.rogues: dict[str, tuple[str, str]] = {}  # job id -> user and node of what goes round the daemon
        self.silent: set[str] = set()  # trainers whose drivers hang
        self.last_job = 0
        self.ids: set[str] = set()
        self.solver_works = True
        self.apply(Configured(self.now, SETTINGS))

    # what happens to the core

    def apply(self, event: Event) -> None:
        """One step, with the rules that concern what was done."""
        before = self.state
        self.state, actions = step(before, event, self.solver)
        validate_state(self.state)
        new = granted(actions)
        for item in new:
            assert item.id not in self.ids, "a lease id came back"
            assert self.state.pool.hold is None, "granted while nothing may grow"
            assert self.now - self.state.pool.time_s <= SETTINGS.pool.stale_after_s, "S9: granted on a stale snapshot"
            heard_s = self.state.trainers[item.trainer].heard_s
            assert self.now - heard_s <= GRANT_SILENT_S, "granted to a driver that is silent"
            where = self.state.pool.nodes[item.node]
            assert where.in_pool, "S5: granted a node that is not in the pool"
            assert where.window_s is None or item.limit_s <= max(60.0, where.window_s), "S1: longer than the window"
            assert item.node in self.state.planned.assignment[item.trainer], "S5: granted what was not planned"
            owner = self.state.trainers[item.trainer]
            scopes = {"all:", f"node:{item.node}", f"user:{owner.user}", f"account:{owner.account}"}
            assert not scopes & self.state.pauses.keys(), "granted what is paused"
        told = opening(self.settings.pool.harvest_at, UTC, self.now)
        for item in new:
            assert told.open, "granted outside the hours of harvesting"
            assert self.now + PLACE_WITHIN_S + item.limit_s <= told.until_s, "S1: longer than the hours of harvesting"
        if self.state.pool.seen and isinstance(event, (PoolObserved, Tick)) and not told.open:
            assert not any(item.live for item in self.state.leases.values()), "lent outside the hours of harvesting"
        if new and (most := self.settings.pool.max_nodes):
            assert len(self.state.leases) <= most, "granted more than all trainers together may have"
        self.ids |= {item.id for item in new}
        for action in of(actions, CancelPilot):
            assert action.job_id not in self.running, "a regular job was cancelled"
            user = self.pilot_user(action.job_id)
            assert action.trainer is None or user == self.users[action.trainer], "another user's job was cancelled"
            assert user != "root", "a job of root was cancelled"
            self.pilots.pop(action.job_id, None)
            self.rogues.pop(action.job_id, None)
        for name in ("pool_node_seconds", "used_node_seconds", "training_node_seconds"):
            assert getattr(self.state.usage, name) >= getattr(before.usage, name), "S10: node-seconds went back"
        charged = sum(share.used_node_seconds for action in of(actions, Charged) for share in action.shares)
        grown = self.state.usage.used_node_seconds - before.usage.used_node_seconds
        assert charged == pytest.approx(grown), "S10: what users are charged is not what was counted"
        for id_, item in self.state.trainers.items():
            if id_ in before.trainers:
                assert item.step >= before.trainers[id_].step, "S10: progress went back"
                assert item.version >= before.trainers[id_].version, "a lease list became older"

    def solver(self, *arguments: Any, **options: Any) -> Any:
        """The real solver, or one that fails."""
        if not self.solver_works:
            raise MilpError("the solver is broken")
        return solve(*arguments, **options)

    def report(self, trainer_id: str, *reports: Report) -> None:
        """A driver reports."""
        self.apply(reported(self.now, trainer_id, *reports))

    def pilot_user(self, job_id: str) -> str:
        """Whose job of the harvested partition that is."""
        return self.rogues[job_id][0] if job_id in self.rogues else self.users[self.owners[job_id]]

    def new_id(self) -> str:
        """The next job id of the cluster."""
        self.last_job += 1
        return str(self.last_job)

    # Slurm

    def busy(self) -> set[str]:
        """Nodes with a regular job."""
        return {name for names in self.running.values() for name in names}

    def look(self) -> None:
        """Take a snapshot."""
        taken = self.busy() | set(self.pilots.values()) | {where for _, where in self.rogues.values()}
        planned = {name for item in self.waiting.values() for name in item.sched_nodes}
        seen = {}
        for name in NODES:
            flags = {"DRAIN"} if name in self.drained else set()
            flags |= {"PLANNED"} if name in planned else set()
            seen[name] = self.hardware(node(name, "ALLOCATED" if name in taken else "IDLE", *flags))
        jobs = [self.slurms_pilot(id_, where) for id_, where in self.pilots.items()]
        jobs += [pilot(id_, where, user=user) for id_, (user, where) in self.rogues.items()]
        jobs += self.waiting.values()
        jobs += [job(id_, "RUNNING", nodes=names) for id_, names in self.running.items()]
        jobs += [self.slurms_driver(id_) for id_ in self.state.trainers]
        leased = {item.node: item.job_id for item in self.state.leases.values()}
        snapshot = Snapshot(self.now, seen, tuple(jobs), ())
        self.memory, view = observe(
            self.memory, snapshot, CONFIG, Harvest.of(PARTITION), leased, self.state.quarantined
        )
        self.apply(PoolObserved(self.now, view))

    def hardware(self, item: Node) -> Node:
        """The node with what it is made of: here all are alike."""
        return item

    def requirements(self, item: Registration) -> Registration:
        """The trainer with what it asks of its nodes: here nothing."""
        return item

    def slurms_pilot(self, id_: str, where: str) -> Job:
        """A pilot as squeue shows it."""
        owner = self.owners[id_]
        whose = {"user": self.users[owner], "account": self.accounts[owner]}
        return pilot(id_, where, comment=f"bft {owner} x", **whose)

    def slurms_driver(self, id_: str) -> Job:
        """A driver as squeue shows it."""
        return job(id_, "RUNNING", partition=("bft-driver",), user=self.users[id_], account=self.accounts[id_])

    @initialize(capped=st.booleans(), caps=CAPS, account=st.sampled_from(ACCOUNTS))
    def begin(self, capped: bool, caps: dict[str, int], account: str) -> None:
        """Two polls make the first pool; where caps are, there are trainers for them."""
        self.poll(1.0)
        self.poll(1.0)
        if capped:
            for user in (*USERS, *USERS):
                self.a_trainer_arrives(1, 4, False, 1.0, user, account)
            self.the_caps_are_read_again(caps)

    @rule(after_s=st.sampled_from([1.0, 1.0, 1.0, 5.0, 30.0]))
    def poll(self, after_s: float) -> None:
        """Time passes, drivers ask, planned jobs start and take their nodes from pilots, and the daemon looks."""
        self.now += after_s
        for id_ in self.state.trainers:
            if id_ not in self.silent:
                self.apply(Heard(self.now, id_))
        for id_, item in list(self.waiting.items()):
            due = item.start_s is not None and item.start_s <= self.now
            if due and not self.busy() & set(item.sched_nodes):
                del self.waiting[id_]
                self.running[id_] = item.sched_nodes
                self.pilots = {key: where for key, where in self.pilots.items() if where not in item.sched_nodes}
                self.rogues = {key: one for key, one in self.rogues.items() if one[1] not in item.sched_nodes}
        self.look()

    @rule(after_s=st.sampled_from([1.0, 15.0]))
    def slurm_does_not_answer(self, after_s: float) -> None:
        """A poll without a snapshot."""
        self.now += after_s
        self.apply(Tick(self.now))

    @rule()
    def a_regular_job_is_submitted(self) -> None:
        """It has no plan yet."""
        id_ = self.new_id()
        self.waiting[id_] = job(id_)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), in_s=st.sampled_from([0.0, 3.0, 15.0, 100.0, 1000.0]))
    def a_waiting_job_is_planned(self, data: Any, in_s: float) -> None:
        """Or planned anew, on other nodes and at another time."""
        id_ = data.draw(st.sampled_from(sorted(self.waiting)))
        names = tuple(data.draw(st.lists(st.sampled_from(NODES), min_size=1, unique=True)))
        self.waiting[id_] = replace(self.waiting[id_], sched_nodes=names, start_s=self.now + in_s)

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data())
    def a_regular_job_goes(self, data: Any) -> None:
        """It ends or is cancelled."""
        id_ = data.draw(st.sampled_from(sorted({*self.running, *self.waiting})))
        self.running.pop(id_, None)
        self.waiting.pop(id_, None)

    @rule(name=st.sampled_from(NODES))
    def a_node_is_drained_or_resumed(self, name: str) -> None:
        """By an administrator."""
        self.drained ^= {name}

    # drivers and their users

    @rule(
        nodes_min=st.integers(1, 3),
        more=st.integers(0, 4),
        even=st.booleans(),
        weight=st.sampled_from([0.5, 1.0, 9.0]),
        user=st.sampled_from(USERS),
        account=st.sampled_from(ACCOUNTS),
    )
    def a_trainer_arrives(self, nodes_min: int, more: int, even: bool, weight: float, user: str, account: str) -> None:
        """With a range, and sometimes with sizes of its own."""
        sizes = tuple(size for size in range(nodes_min, nodes_min + more + 1) if size % 2 == 0) if even else None
        item = registration(self.new_id(), nodes_min, nodes_min + more, weight=weight, sizes=sizes or None, user=user)
        self.users[item.id], self.accounts[item.id] = user, account
        self.apply(Registered(self.now, self.requirements(item)))

    def some_lease(self, data: Any) -> Any:
        """Any lease."""
        return self.state.leases[data.draw(st.sampled_from(sorted(self.state.leases)))]

    @precondition(lambda self: self.state.leases)
    @rule()
    def drivers_do_as_told(self) -> None:
        """All of them place what is granted, where Slurm lets them, and end what is revoked."""
        for item in list(self.state.leases.values()):
            if item.id not in self.state.leases:
                continue
            if not item.live:
                self.pilots.pop(item.job_id or "", None)
                self.report(item.trainer, lease(item.id, "ended"))
            elif item.job_id is None:
                rogue = {where for _, where in self.rogues.values()}
                if item.node in self.busy() | set(self.pilots.values()) | self.drained | rogue:
                    self.report(item.trainer, lease(item.id, "refused", reason="node is busy"))
                else:
                    id_ = self.new_id()
                    self.pilots[id_] = item.node
                    self.owners[id_] = item.trainer
                    self.report(item.trainer, lease(item.id, "placed", job_id=id_), lease(item.id, "working"))

    @precondition(lambda self: self.state.leases)
    @rule(data=st.data(), state=st.sampled_from(["placed", "refused", "ready", "working", "leaving", "ended"]))
    def a_driver_says_anything_about_a_lease(self, data: Any, state: str) -> None:
        """In any order, also what cannot be."""
        item = self.some_lease(data)
        job_id = data.draw(st.sampled_from([None, *self.pilots, *self.rogues, *self.running, "999999"]))
        self.report(item.trainer, lease(item.id, state, job_id=job_id))

    @precondition(lambda self: self.state.leases)
    @rule(data=st.data())
    def a_worker_crashes(self, data: Any) -> None:
        """With or without its pilot."""
        item = self.some_lease(data)
        self.report(item.trainer, CrashReport(NOW_S, item.node, 1))
        if data.draw(st.booleans()):
            self.pilots.pop(item.job_id or "", None)
            self.report(item.trainer, lease(item.id, "ended", reason="the worker crashed"))

    @precondition(lambda self: self.state.trainers)
    @rule(data=st.data(), count=st.integers(0, 8), rate=st.just(0.0) | st.floats(0.01, 500), where=st.integers(0, 100))
    def a_driver_reports_progress(self, data: Any, count: int, rate: float, where: int) -> None:
        """Also senseless numbers."""
        id_ = data.draw(st.sampled_from(sorted(self.state.trainers)))
        progress = ProgressReport(NOW_S, step=where, samples=where * 8.0, samples_per_s=rate, nodes=count)
        resize = ResizeReport(NOW_S, from_nodes=count, to_nodes=2, kind="up", stall_s=rate / 100)
        self.report(id_, progress, resize)

    @precondition(lambda self: self.state.trainers)
    @rule(data=st.data())
    def a_driver_hangs_or_goes_on(self, data: Any) -> None:
        """Its job runs all the same."""
        self.silent ^= {data.draw(st.sampled_from(sorted(self.state.trainers)))}

    @precondition(lambda self: self.state.trainers)
    @rule(data=st.data())
    def a_driver_comes_back(self, data: Any) -> None:
        """With some of its leases, and perhaps with one that nobody knows."""
        item = self.state.trainers[data.draw(st.sampled_from(sorted(self.state.trainers)))]
        own = [one for one in self.state.leases.values() if data.draw(st.booleans())]
        held = (*(Held(one.id, one.node, one.job_id) for one in own), Held("n1.7", "n1", None))
        self.apply(Registered(self.now, replace(item.request, sizes=replace(item.sizes, only=None), held=held)))
        self.ids.add("n1.7")

    @precondition(lambda self: self.state.trainers)
    @rule(data=st.data())
    def a_trainer_finishes(self, data: Any) -> None:
        """For good or ill."""
        id_ = data.draw(st.sampled_from(sorted(self.state.trainers)))
        self.apply(Finished(self.now, id_, 0, ""))

    @precondition(lambda self: active_of(self.state))
    @rule(data=st.data(), low=st.integers(1, 4), more=st.integers(0, 3), weight=st.sampled_from([None, 0.5, 3.0]))
    def a_user_changes_a_trainer(self, data: Any, low: int, more: int, weight: float | None) -> None:
        """To fewer or more nodes than it has."""
        id_ = data.draw(st.sampled_from(active_of(self.state)))
        sizes = self.state.trainers[id_].sizes.between(low, low + more)
        self.apply(RequestChanged(self.now, id_, sizes, weight))

    # the operator

    @rule(pj_max=st.integers(1, 4), objective=st.sampled_from(["throughput", "efficiency", "priority"]))
    def the_operator_tunes(self, pj_max: int, objective: str) -> None:
        """Settings change at any time."""
        self.settings = self.settings.changed(pj_max=pj_max, objective=objective)
        self.apply(Configured(self.now, self.settings))

    @rule(caps=CAPS)
    def the_caps_are_read_again(self, caps: dict[str, int]) -> None:
        """Higher, lower or none."""
        self.settings = self.settings.changed(**caps)
        self.apply(Configured(self.now, self.settings))

    @rule(what=st.lists(st.sampled_from(PAUSABLE), min_size=1, max_size=3, unique=True), release=st.booleans())
    def the_operator_pauses(self, what: list[tuple[Any, str]], release: bool) -> None:
        """Nodes, users, accounts or all, whether Slurm answers or not."""
        pauses = tuple(Pause(kind, name, "root", self.now, "a test", release) for kind, name in what)
        self.apply(Paused(self.now, pauses))

    @precondition(lambda self: self.state.pauses)
    @rule(data=st.data())
    def the_operator_resumes(self, data: Any) -> None:
        """Some of it."""
        keys = data.draw(st.lists(st.sampled_from(sorted(self.state.pauses)), min_size=1, unique=True))
        self.apply(Unpaused(self.now, "root", tuple(keys)))

    @rule(most=st.sampled_from([0, 0, 2, 3, 5]))
    def the_operator_bounds_all_trainers(self, most: int) -> None:
        """Higher, lower or not at all."""
        self.settings = self.settings.changed(max_nodes=most)
        self.apply(Configured(self.now, self.settings))

    @rule(text=st.sampled_from(["", "", "00:00-00:20", "00:18-00:30", "00:15-23:45", "Fri"]))
    def the_hours_of_harvesting_are_read_again(self, text: str) -> None:
        """It is Thursday, about a quarter past midnight."""
        self.settings = self.settings.changed(harvest_at=text)
        self.apply(Configured(self.now, self.settings))

    @precondition(lambda self: self.state.trainers)
    @rule(data=st.data(), account=st.sampled_from(ACCOUNTS))
    def a_job_is_moved_to_another_account(self, data: Any, account: str) -> None:
        """With scontrol update."""
        self.accounts[data.draw(st.sampled_from(sorted(self.state.trainers)))] = account

    @rule(user=st.sampled_from([*USERS, "root"]), name=st.sampled_from(NODES))
    def a_user_goes_round_the_daemon(self, user: str, name: str) -> None:
        """With an salloc of his own."""
        taken = self.busy() | set(self.pilots.values()) | {where for _, where in self.rogues.values()}
        if name not in taken:
            self.rogues[self.new_id()] = (user, name)

    @rule()
    def the_daemon_starts_again(self) -> None:
        """With what its ledger keeps: trainers, leases and what is known against nodes."""
        kept = self.state
        self.memory = PoolMemory()
        self.state = State(
            trainers={id_: replace(item, heard_s=self.now) for id_, item in kept.trainers.items()},
            leases={id_: replace(item, observed=False, missed_polls=0) for id_, item in kept.leases.items()},
            sequence=kept.sequence,
            usage=kept.usage,
            quarantined=kept.quarantined,
            backoff=kept.backoff,
            failures=kept.failures,
            pauses=kept.pauses,
        )
        self.apply(Configured(self.now, self.settings))

    @rule(by_s=st.sampled_from([-1e6, -3600.0, -61.0, -4.0, 4.0, 61.0, 3600.0, 1e6]))
    def the_clock_is_set(self, by_s: float) -> None:
        """Both ways, at any moment: of itself it ends nothing, and time goes on from there. What Slurm plans stays."""
        before = self.state
        self.now += by_s
        self.memory = self.memory.moved(by_s)
        self.apply(ClockSet(self.now, by_s))
        assert not self.state.pool.seen, "S9: the pool of before the step counts as seen"
        assert self.state.time_s == self.now, "time waits for the clock"
        assert self.state.leases.keys() == before.leases.keys(), "a lease ended for a step of the clock"
        assert all(item.live == before.leases[id_].live for id_, item in self.state.leases.items())
        assert active_of(self.state) == active_of(before), "a trainer ended for a step of the clock"

    @rule(works=st.booleans())
    def the_solver_breaks_or_works(self, works: bool) -> None:
        """A broken solver must stop nobody."""
        self.solver_works = works

    @invariant()
    def S4_no_node_is_lent_twice(self) -> None:
        """Also when revoked leases are counted."""
        owned = [item.node for item in self.state.leases.values()]
        assert len(owned) == len(set(owned))

    @invariant()
    def L4_nobody_waits_with_fewer_nodes_than_it_can_use(self) -> None:
        """A trainer has nothing, or a size that it can run on, unless its loss awaits the next snapshot's plan."""
        if self.state.plan_due:
            return
        for item in self.state.trainers.values():
            live = sum(one.live for one in self.state.leases.values() if one.trainer == item.id)
            assert live == 0 or item.sizes.low <= live <= item.sizes.high

    @invariant()
    def no_user_and_no_account_exceeds_its_caps(self) -> None:
        """By what Slurm said of accounts at the last snapshot; a new daemon waits for its first one."""
        if not self.state.pool.seen:
            return
        items = [self.state.trainers[one.trainer] for one in self.state.leases.values() if one.live]
        for field, nodes, trainers in (
            ("user", self.settings.limits.nodes_per_user, self.settings.limits.trainers_per_user),
            ("account", self.settings.limits.nodes_per_account, self.settings.limits.trainers_per_account),
        ):
            for whose in {getattr(item, field) for item in items} - {""}:
                held = [item.id for item in items if getattr(item, field) == whose]
                assert len(held) <= nodes or not nodes, f"{field} {whose} has {len(held)} nodes"
                assert len(set(held)) <= trainers or not trainers, f"{field} {whose} has too many trainers"

    def teardown(self) -> None:
        """L1: when all is quiet, and drivers do as told, no node stays idle that a trainer could use."""
        self.solver_works = True
        self.drained.clear()
        self.waiting.clear()
        self.running.clear()
        self.rogues.clear()
        self.silent.clear()
        self.apply(Unpaused(self.now, "root", tuple(self.state.pauses)))
        self.settings = SETTINGS.changed(pj_max=10, trainers_per_user=0)
        self.apply(Configured(self.now, self.settings))
        for _ in range(12):  # longer than any back-off, quarantine or grace
            self.poll(11.0 if self.state.pool.seen else 1.0)
            self.poll(1.0)
            self.drivers_do_as_told()
        self.poll(1.0)
        active = [item for item in self.state.trainers.values() if item.active and item.state == "waiting"]
        free = [name for name in NODES if name not in {item.node for item in self.state.leases.values()}]
        for item in active:
            if item.no_growth_until_s > self.now:  # its grants came to nothing too often
                continue
            if item.sizes.low <= len(free) and item.sizes.only is None and not item.knowledge.seen:
                raise AssertionError(f"L1: {item.id} needs {item.sizes.low} nodes and {free} are idle")


TestCluster = Cluster.TestCase
# no shrinking: it takes minutes for such histories, and a failure prints its steps anyway
TestCluster.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
