"""The limits of QOS and associations that decide whether a job may start beside those that run. Pure.

Slurm counts the running jobs and their nodes for each QOS, for each user and account of a QOS, for each user of an
account, and for each account with all below it. A job that would exceed any of these is passed over by the main
scheduler and gets no plan from backfill, but closes no nodes to the jobs behind it. (Read in slurmctld's acct_policy.c,
job_scheduler.c and sched/backfill of 22.05; SchedulerParameters without assoc_limit_stop.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

Bound = tuple[tuple[str, ...], float, float]
"""The key by which jobs are counted, and the most of these jobs and of their nodes."""


@dataclass(frozen=True, slots=True)
class Most:
    """The most running jobs, and the most nodes that they may have together."""

    jobs: float = inf
    nodes: float = inf


@dataclass(frozen=True, slots=True)
class QosLimits:
    """The limits of a QOS: of all its jobs (Grp...), of each user's (...PU), and of each account's (...PA)."""

    group: Most = Most()
    user: Most = Most()
    account: Most = Most()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits by name of the QOS, by account (Grp...), and of each user of an account (MaxJobs and Grp...).

    `parents` are the accounts above others.
    """

    qos: Mapping[str, QosLimits] = field(default_factory=dict)
    accounts: Mapping[str, Most] = field(default_factory=dict)
    users: Mapping[tuple[str, str], Most] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)

    def bounds(self, qos: str, account: str, user: str) -> tuple[Bound, ...]:
        """Return what bounds a job."""
        found: list[tuple[tuple[str, ...], Most]] = []
        if (own := self.qos.get(qos)) is not None:
            found += [
                (("qos", qos), own.group),
                (("qos of user", qos, user), own.user),
                (("qos of account", qos, account), own.account),
            ]
        if (most := self.users.get((account, user))) is not None:
            found.append((("user", account, user), most))
        above: set[str] = set()
        while account and account not in above:
            above.add(account)
            if (most := self.accounts.get(account)) is not None:
                found.append((("account", account), most))
            account = self.parents.get(account, "")
        return tuple((key, most.jobs, most.nodes) for key, most in found if most != Most())


class Running:
    """The running jobs and their nodes, by what bounds them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], tuple[int, int]] = {}

    def allows(self, bounds: Iterable[Bound], nodes: int) -> bool:
        """Whether a job of some nodes may start."""
        for key, most_jobs, most_nodes in bounds:
            jobs, used = self._counts.get(key, (0, 0))
            if jobs >= most_jobs or used + nodes > most_nodes:
                return False
        return True

    def add(self, bounds: Iterable[Bound], nodes: int, jobs: int = 1) -> None:
        """Count a job that starts; with negative numbers one that ends."""
        for key, _, _ in bounds:
            before, used = self._counts.get(key, (0, 0))
            self._counts[key] = before + jobs, used + nodes
