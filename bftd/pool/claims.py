"""The soonest planned uses of each node, and the nodes that were given up for one. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from math import inf

from bftd.core.model.domain import Earmark
from bftd.pool.earmarks import key
from slurm_plugin.pilots.pending_reasons import Standing, is_being_started, may_use, plan_window_s, standing
from slurm_plugin.read.types import Job, Node, Reservation

# Slurm grants nothing that reaches into a reservation, and no time limit is shorter than a minute.
SHORTEST_JOB_S = 60.0


# Slurm starts a job that it has preempted for in its next cycle, a second later at best; a busy controller needs two.
COUNTED_ON_S = 5.0


@dataclass(frozen=True, slots=True)
class Claim:
    """The soonest planned use of a node: by whom (in words, and by id), and in how many seconds."""

    by: str
    window_s: float
    id: str


@dataclass(frozen=True, slots=True)
class Claims:
    """The soonest claims of a job and of a reservation on a node: they keep pilots away from different times on."""

    job: Claim | None = None
    reservation: Claim | None = None

    @property
    def first(self) -> Claim | None:
        """The soonest of both."""
        if self.job is None or self.reservation is None:
            return self.job or self.reservation
        return min(self.job, self.reservation, key=lambda claim: claim.window_s)

    def soon(self, min_window_s: float) -> Claim | None:
        """Return a claim that needs the node too soon for another pilot to start there; None if there is none."""
        if self.job is not None and self.job.window_s < min_window_s:
            return self.job
        if self.reservation is not None and self.reservation.window_s < max(min_window_s, SHORTEST_JOB_S):
            return self.reservation
        return None


NO_CLAIMS = Claims()


def claims(pending: Iterable[Job], reservations: Iterable[Reservation], now_s: float) -> dict[str, Claims]:
    """Return the claims on each node: planned starts of pending jobs, and reservations still to come or active."""
    jobs: dict[str, Claim] = {}
    reserved: dict[str, Claim] = {}
    for job in pending:
        if (window_s := plan_window_s(job, now_s)) is not None:
            _claim(jobs, job.sched_nodes, Claim(f"job {job.id}", window_s, job.id))
    for reservation in reservations:
        if reservation.end_s > now_s:
            window_s = max(0.0, reservation.start_s - now_s)
            _claim(reserved, reservation.nodes, Claim(f"reservation {reservation.name}", window_s, reservation.name))
    return {node: Claims(jobs.get(node), reserved.get(node)) for node in jobs.keys() | reserved.keys()}


def _claim(found: dict[str, Claim], nodes: Iterable[str], new: Claim) -> None:
    for node in nodes:
        old = found.get(node)
        if old is None or new.window_s < old.window_s:
            found[node] = new


def still_vacated(before: Mapping[str, str], pending: Iterable[Job]) -> dict[str, str]:
    """Return the nodes that stay given up: their job still waits and has not been held back since."""
    if not before:
        return {}
    waiting = {job.id for job in pending if standing(job.reason) is not Standing.HELD}
    return {node: job for node, job in before.items() if job in waiting}


def being_started(
    before: Mapping[str, float], pending: Iterable[Job], leased: Set[str], lately: Set[str], now_s: float
) -> dict[str, float]:
    """Return since when Slurm has been starting each job on nodes that are or were `lately` leased, by job id.

    Slurm preempts for these jobs. Jobs of `before` stay in until they have started, wherever their plan moves.
    """
    return {
        job.id: min(before.get(job.id, now_s), now_s)
        for job in pending
        if job.sched_nodes
        and is_being_started(job, now_s)
        and (job.id in before or not (leased.isdisjoint(job.sched_nodes) and lately.isdisjoint(job.sched_nodes)))
    }


def counted_on(
    since: Mapping[str, float],
    pending: Iterable[Job],
    nodes: Mapping[str, Node],
    leased: Set[str],
    earmarks: Mapping[str, Earmark],
    now_s: float,
) -> frozenset[str]:
    """Return the nodes that jobs may count on which Slurm has been starting since recently (`being_started`).

    They are all nodes that such a job may use: it may count on idle nodes beside those of its plan. A pilot that came
    to one of them would lock the job out: Slurm does not preempt for it again for a while. Slurm does not tell which
    nodes of its partitions it takes. A job whose earmark in `earmarks` is free of leases needs no more preemption.
    """
    held = [
        job
        for job in (pending if since else ())
        if now_s - since.get(job.id, -inf) <= COUNTED_ON_S
        and ((earmark := earmarks.get(key(job.id))) is None or not leased.isdisjoint(earmark.nodes))
    ]
    if not held:
        return frozenset()
    names_of: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for name, node in nodes.items():
        names_of[node.partitions].add(name)
    return frozenset().union(
        *(
            names.difference(job.request.excluded)
            for job in held
            for partitions, names in names_of.items()
            if may_use(job, partitions)
        )
    )
