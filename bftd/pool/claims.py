"""The soonest planned use of each node, and the nodes that were given up for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_plugin.types import Job, Reservation
from slurm_plugin.waiting import Standing, plan_window_s, standing

# Slurm grants nothing that reaches into a reservation, and no time limit is shorter than a minute.
SHORTEST_JOB_S = 60.0


@dataclass(frozen=True, slots=True)
class Claim:
    """The soonest planned use of a node: who, and in how many seconds; `job` is None for a reservation."""

    by: str
    window_s: float
    job: str | None

    def soon(self, min_window_s: float) -> bool:
        """Whether the node is needed too soon for another pilot to start there."""
        return self.window_s < (min_window_s if self.job is not None else max(min_window_s, SHORTEST_JOB_S))


def claims(pending: Iterable[Job], reservations: Iterable[Reservation], now_s: float) -> dict[str, Claim]:
    """The soonest claim on each node: planned starts of pending jobs, and reservations still to come or active."""
    found: dict[str, Claim] = {}

    def claim(nodes: Iterable[str], new: Claim) -> None:
        for node in nodes:
            old = found.get(node)
            if old is None or new.window_s < old.window_s:
                found[node] = new

    for job in pending:
        if (window_s := plan_window_s(job, now_s)) is not None:
            claim(job.sched_nodes, Claim(f"job {job.id}", window_s, job.id))
    for reservation in reservations:
        if reservation.end_s > now_s:
            window_s = max(0.0, reservation.start_s - now_s)
            claim(reservation.nodes, Claim(f"reservation {reservation.name}", window_s, None))
    return found


def still_vacated(before: Mapping[str, str], pending: Iterable[Job]) -> dict[str, str]:
    """Nodes that stay given up: those whose job still waits and has not been held back since."""
    if not before:
        return {}
    waiting = {job.id for job in pending if standing(job.reason) is not Standing.HELD}
    return {node: job for node, job in before.items() if job in waiting}
