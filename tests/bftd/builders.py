"""Short ways to the objects that tests of the pool and the core are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from bftd.config.keys import PoolConfig
from bftd.core.invariants import validate_state
from bftd.core.model.delays import TouchedStart
from bftd.core.model.domain import (
    Action,
    Decided,
    Earmark,
    EarmarkOver,
    Lease,
    LeaseChanged,
    PoolNode,
    PoolView,
    Settings,
    State,
    Trainer,
)
from bftd.core.model.events import Configured, Event, Finished, Heard, PoolObserved, Registered, Reported, Tick
from bftd.core.model.foreign_jobs import ElasticJob
from bftd.core.model.pause import Pause, Paused, Unpaused
from bftd.core.scaling.learning import ScalingModel
from bftd.core.step import step
from bftd.pool.harvest import Harvest
from bftd.pool.membership import PoolMemory, observe
from bftd.protocol.lease import LeaseState, Phase
from bftd.protocol.registration import Held, Registration
from bftd.protocol.reports import LeaseReport, Report
from bftd.protocol.sizes import Sizes
from slurm_plugin.read.types import Job, Node, Reservation, Snapshot
from tests.support.messages import wording

A = TypeVar("A", bound=Action)

PARTITION = "elastic"
CONFIG = PoolConfig()


def names(count: int) -> list[str]:
    """Of so many nodes."""
    return [f"n{number}" for number in range(1, count + 1)]


def node(name: str, state: str = "IDLE", *flags: str, **fields: Any) -> Node:
    """A compute node of both partitions."""
    plain = Node(
        name=name,
        state=state,
        flags=frozenset(flags),
        partitions=("batch", "elastic"),
        features=(),
        gres="",
        gpus={},
        cpus=4,
        memory_bytes=2**30,
        reason="",
    )
    return replace(plain, **fields)


def job(id_: str, state: str = "PENDING", **fields: Any) -> Job:
    """A regular job of the batch partition."""
    plain = Job(
        id=id_,
        user="ann",
        partition=("batch",),
        state=state,
        name="job",
        nodes=(),
        sched_nodes=(),
        start_s=None,
        submit_s=0.0,
        time_limit_s=3600.0,
        reason="Resources" if state == "PENDING" else "None",
        node_count=1,
        comment="",
        dependency="",
        priority=1,
        reservation="",
    )
    return replace(plain, **fields)


def pilot(id_: str, where: str, **fields: Any) -> Job:
    """A running pilot."""
    return job(id_, "RUNNING", partition=(PARTITION,), nodes=(where,), **fields)


class Pool:
    """Feeds snapshots one second apart to `bftd.pool.membership.observe`."""

    def __init__(self, config: PoolConfig = CONFIG) -> None:
        self.config = config
        self.memory = PoolMemory()
        self.time_s = 1000.0

    def see(
        self,
        nodes: Iterable[Node],
        jobs: Iterable[Job] = (),
        leased: Mapping[str, str | None] | None = None,
        reservations: Iterable[Reservation] = (),
        quarantined: Mapping[str, float] | None = None,
        after_s: float = 1.0,
    ) -> PoolView:
        """Take one snapshot in, `after_s` after the last."""
        self.time_s += after_s
        snapshot = Snapshot(self.time_s, {item.name: item for item in nodes}, tuple(jobs), tuple(reservations))
        self.memory, view = observe(
            self.memory, snapshot, self.config, Harvest.of(PARTITION), leased or {}, quarantined or {}
        )
        return view


def members(view: PoolView) -> set[str]:
    """The names of the pool's nodes."""
    return {name for name, item in view.nodes.items() if item.in_pool}


def registration(
    id_: str, nodes_min: int = 1, nodes_max: int = 4, sizes: tuple[int, ...] | None = None, **fields: Any
) -> Registration:
    """How a driver of ann's introduces its trainer."""
    plain = Registration(id_, f"train-{id_}", "horovod", Sizes(nodes_min, nodes_max, sizes), "ann", PARTITION)
    return replace(plain, **fields)


def trainer(id_: str, **fields: Any) -> Trainer:
    """A trainer that has just registered."""
    return Trainer(registration(id_, **fields), 0.0, ScalingModel())


def leased(node: str, trainer_id: str, phase: Phase = "working", **fields: Any) -> Lease:
    """A lease of an hour, of a node whose name ends in its number."""
    number = "".join(filter(str.isdigit, node))
    return Lease(f"{node}.{number}", node, trainer_id, 10_000.0, 3600.0, "", phase=phase, **fields)


def state_of(trainers: Sequence[Trainer], leases: Sequence[Lease], **fields: Any) -> State:
    """The state of a core with these trainers and leases."""
    return State(
        time_s=10_000.0,
        trainers={item.id: item for item in trainers},
        leases={item.id: item for item in leases},
        **fields,
    )


class Core:
    """Feeds events to `step` and validates the state after each; its pool is set by hand."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.state = State()
        self.time_s = 1000.0
        self.actions: list[Action] = []
        self.solve: Any = None
        self.pilots: dict[str, str] = {}
        self.job_ids: frozenset[str] | None = None  # None: the drivers' jobs all run
        self.silent: set[str] = set()  # trainers whose drivers do not ask for their leases
        self.owners: dict[str, str] = {}
        self.elastic: dict[str, ElasticJob] = {}  # jobs of the partition beside the pilots
        self.elsewhere: dict[str, ElasticJob] = {}
        self.accounts: dict[str, tuple[str, str]] = {}
        self._version = 0
        self._members: frozenset[str] = frozenset()
        self.apply(Configured(self.time_s, settings or Settings()))

    def apply(self, event: Event) -> tuple[Action, ...]:
        """One step, checked."""
        before = self.state
        options = {"solve": self.solve} if self.solve else {}
        self.state, actions = step(before, event, **options)
        validate_state(self.state)
        assert step(before, event, **options) == (self.state, actions), "step is not a function of its arguments"
        self.actions += actions
        return actions

    def pool(
        self,
        *names: str,
        hold: str | None = None,
        out: Mapping[str, PoolNode] | None = None,
        after_s: float = 1.0,
        windows: Mapping[str, float] | None = None,
        earmarks: Iterable[Earmark] = (),
        over: Iterable[EarmarkOver] = (),
        counted_on: Iterable[str] = (),
        touched: Iterable[TouchedStart] = (),
    ) -> tuple[Action, ...]:
        """A snapshot in which just these nodes are in the pool, and those of `out` are seen but are not.

        Drivers whose jobs run have asked for their leases meanwhile. The nodes of `earmarks` are kept for their jobs.
        """
        self.time_s += after_s
        there = self.state.trainers.keys() - self.silent if self.job_ids is None else self.job_ids - self.silent
        for id_ in sorted(there):
            self.apply(Heard(self.time_s, id_))
        on = {where: id_ for id_, where in self.pilots.items()}
        windows = windows or {}
        seen = {
            name: PoolNode(name, "IDLE", True, "is idle", pilot=on.get(name), window_s=windows.get(name))
            for name in names
        }
        kept = {earmark.job: earmark for earmark in earmarks}
        for earmark in kept.values():
            why = "is left to " + wording("pool.judgement.job_that_can_start", job=earmark.job)
            left = (PoolNode(name, "IDLE", False, why, wanted=True, pilot=on.get(name)) for name in earmark.nodes)
            seen |= {item.name: replace(item, window_s=windows.get(item.name)) for item in left}
        if frozenset(names) != self._members:
            self._members = frozenset(names)
            self._version += 1
        job_ids = frozenset(self.state.trainers) if self.job_ids is None else self.job_ids
        users = {item.job_id: self.state.trainers[item.trainer].user for item in self.state.leases.values()}
        elastic = {id_: ElasticJob(id_, users.get(id_, "ann"), "", (where,)) for id_, where in self.pilots.items()}
        elastic |= self.elastic
        view = PoolView(
            self._version, self.time_s, hold, seen | dict(out or {}), dict(self.pilots), self.owners, job_ids,
            elastic, dict(self.accounts), earmarks=kept, earmarks_over=tuple(over), counted_on=frozenset(counted_on),
            touched=tuple(touched), elsewhere=self.elsewhere,
        )  # fmt: skip
        return self.apply(PoolObserved(self.time_s, view))

    def arrive(self, request: Registration, *held: Held, after_s: float = 0.0) -> tuple[Action, ...]:
        """A driver registers."""
        self.time_s += after_s
        return self.apply(Registered(self.time_s, replace(request, held=held)))

    def report(self, trainer_id: str, *reports: Report, after_s: float = 0.0) -> tuple[Action, ...]:
        """A driver reports."""
        self.time_s += after_s
        return self.apply(reported(self.time_s, trainer_id, *reports))

    def finish(self, trainer_id: str, exit_code: int = 0) -> tuple[Action, ...]:
        """A driver ends its trainer."""
        return self.apply(Finished(self.time_s, trainer_id, exit_code, ""))

    def pause(self, *what: str, release: bool = False, why: str = "a test", by: str = "root") -> tuple[Action, ...]:
        """An administrator pauses "all", "node n1", "user ann" or "account chem"."""
        parted = (word.partition(" ") for word in what)
        pauses = tuple(Pause(cast("Any", kind), name, by, self.time_s, why, release) for kind, _, name in parted)
        return self.apply(Paused(self.time_s, pauses))

    def resume(self, *what: str, by: str = "root") -> tuple[Action, ...]:
        """And lifts it again."""
        keys = (word.partition(" ") for word in what)
        return self.apply(Unpaused(self.time_s, by, tuple(f"{kind}:{name}" for kind, _, name in keys)))

    def tick(self, after_s: float = 1.0) -> tuple[Action, ...]:
        """Time passes without a snapshot."""
        self.time_s += after_s
        return self.apply(Tick(self.time_s))

    def leases(self, trainer_id: str, live: bool = True) -> list[Lease]:
        """A trainer's live or revoked leases."""
        return [item for item in self.state.leases.values() if item.trainer == trainer_id and item.live == live]

    def nodes(self, trainer_id: str) -> set[str]:
        """The nodes that a trainer may keep."""
        return {item.node for item in self.leases(trainer_id)}

    def place_all(self, phase: Phase = "working") -> None:
        """Every granted lease gets a pilot that reaches `phase`."""
        for item in list(self.state.leases.values()):
            if item.live and item.job_id is None:
                job_id = f"7{item.id.rpartition('.')[2]}"
                self.pilots[job_id] = item.node
                self.report(item.trainer, lease(item.id, "placed", job_id=job_id), lease(item.id, phase))

    def sentences(self) -> list[str]:
        """All decisions so far."""
        return [action.text for action in of(self.actions, Decided)]


# The time of a report that is to be that of its event.
NOW_S = -1.0


def reported(time_s: float, trainer_id: str, *reports: Report) -> Reported:
    """Reports as an event, of its time where they have none of their own."""
    timed = (replace(item, at_s=time_s) if item.at_s == NOW_S else item for item in reports)
    return Reported(time_s, trainer_id, tuple(timed))


def lease(id_: str, state: LeaseState, at_s: float = NOW_S, **fields: Any) -> LeaseReport:
    """A report about a lease."""
    return LeaseReport(at_s, id_, state, **fields)


def of(actions: Iterable[Action], cls: type[A], /, **fields: Any) -> list[A]:
    """The actions of one class whose fields have these values, in order."""
    return [
        action
        for action in actions
        if isinstance(action, cls) and all(getattr(action, name) == value for name, value in fields.items())
    ]


def granted(actions: Iterable[Action]) -> list[Lease]:
    """The leases granted by these actions."""
    return [action.lease for action in of(actions, LeaseChanged, kind="granted")]


def revoked(actions: Iterable[Action]) -> list[Lease]:
    """The leases revoked by these actions."""
    return [action.lease for action in of(actions, LeaseChanged, kind="revoked")]
