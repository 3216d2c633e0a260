"""The soonest planned uses of each node, and the nodes that were given up for one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_plugin.types import Job, Reservation
from slurm_plugin.waiting import Standing, plan_window_s, standing

# Slurm grants nothing that reaches into a reservation, and no time limit is shorter than a minute.
SHORTEST_JOB_S = 60.0


@dataclass(frozen=True, slots=True)
class Claim:
    """The soonest planned use of a node: by whom, as a sentence names it and by its own id, and in how many seconds."""

    by: str
    window_s: float
    id: str


@dataclass(frozen=True, slots=True)
class Claims:
    """The soonest claim of a job on a node and that of a reservation: they keep pilots away from different times on."""

    job: Claim | None = None
    reservation: Claim | None = None

    @property
    def first(self) -> Claim | None:
        """The soonest of both."""
        if self.job is None or self.reservation is None:
            return self.job or self.reservation
        return min(self.job, self.reservation, key=lambda claim: claim.window_s)

    def soon(self, min_window_s: float) -> Claim | None:
        """One for which the node is needed too soon for another pilot to start there."""
        if self.job is not None and self.job.window_s < min_window_s:
            return self.job
        if self.reservation is not None and self.reservation.window_s < max(min_window_s, SHORTEST_JOB_S):
            return self.reservation
        return None


NO_CLAIMS = Claims()


def claims(pending: Iterable[Job], reservations: Iterable[Reservation], now_s: float) -> dict[str, Claims]:
    """The claims on each node: planned starts of pending jobs, and reservations still to come or active."""
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
    """Nodes that stay given up: those whose job still waits and has not been held back since."""
    if not before:
        return {}
    waiting = {job.id for job in pending if standing(job.reason) is not Standing.HELD}
    return {node: job for node, job in before.items() if job in waiting}
