"""The input of the simulated slurmctld: its nodes, settings and delays, and the regular jobs that come to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from bftd.pool.backfill.model import Booking, Component, Numbering
from bftd.simulation.slurm.limits import Limits
from bftd.simulation.slurm.priority import Multifactor
from bftd.simulation.slurm.switches import Switch
from slurm_plugin.read.types import Scheduler


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A regular job of whole nodes, as its user submitted it, and the time that it runs for.

    Times are in unix seconds. The jobs of one simulation are numbered in the order of their submission. It may start on
    the nodes of `component`, not before `eligible_s`, nor before the jobs numbered `after` have ended. A job of the
    reservation `booked` starts only on its nodes, while it lasts. `partitions` are the places of its partitions in
    those of the site; () are jobs of one partition for all. Its nodes are COMPLETING for `epilog_s` after its end. If
    one of them fails, it waits again if it may `requeue`, else it ends.
    """

    number: int
    submit_s: float
    run_s: float
    limit_s: float
    component: Component
    eligible_s: float = 0.0
    after: tuple[int, ...] = ()
    booked: int | None = None
    user: str = "user"
    partitions: tuple[int, ...] = ()
    account: str = ""
    qos: str = ""
    epilog_s: float = 0.0
    requeue: bool = True


@dataclass(frozen=True, slots=True)
class SimulatedPartition:
    """Nodes that jobs are submitted to: its `tier` (PriorityTier) comes before the jobs' priorities.

    `factor` (PriorityJobFactor) counts only with multifactor priority.
    """

    mask: int
    tier: int = 1
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Outage:
    """Nodes that are down for a time, in unix seconds; if they are only `drained`, jobs on them run to their end."""

    mask: int
    start_s: float
    end_s: float
    drained: bool = False


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds that Slurm and pilots take on average; each is drawn anew, by a log-normal law of the `spread` sigma.

    The defaults were measured on private clusters of one machine (docs/evidence/impact.md).
    """

    first_line_s: float = 0.055  # from a job's allocation to its first line
    idle_s: float = 0.015  # from a job's last line to idle nodes
    look_after_epilog_s: float = 0.02  # from the end of an epilog to the look of the main scheduler
    look_after_pilot_s: float = 0.01
    give_back_s: float = 0.2  # from Slurm's preemption to idle nodes
    vacate_s: float = 0.2  # from bftd's look at Slurm to idle nodes, where pilots leave before Slurm asks
    grant_s: float = 0.35  # from bftd's look at Slurm to the pilot's allocation
    spread: float = 0.5


@dataclass(frozen=True, slots=True)
class SimulatedSite:
    """The nodes, and the settings of slurmctld that decide which job starts when and where.

    `weights` are the nodes by ascending weight. The main scheduler looks at the whole queue every `sched_interval_s`
    and after a submission or the end of a job, at most every `batch_delay_s`, in the rounds of slurmctld's background
    loop, which sleeps ten times a tenth of a second and so takes `tick_s`; after an epilog it looks at once. A job for
    which Slurm has preempted is not preempted for again for `lock_out_s` (KillWait and MessageTimeout).

    Without `priority` the queue is in the order of submission (priority/basic). `limits` say which jobs may run beside
    each other, and `switches` are those of topology/tree. A job that would run on beyond its limit ends
    `over_time_limit_s` after it, where that is finite.
    """

    numbering: Numbering
    weights: Sequence[int]
    bookings: Sequence[Booking] = ()
    scheduler: Scheduler = field(default_factory=Scheduler)
    sched_interval_s: float = 60.0
    batch_delay_s: float = 3.0
    tick_s: float = 1.0035
    cycle_s: float = 0.01
    youngest_first: bool = False
    lock_out_s: float = 40.0
    delays: Delays = Delays()
    partitions: Sequence[SimulatedPartition] = ()
    priority: Multifactor | None = None
    limits: Limits | None = None
    outages: Sequence[Outage] = ()
    switches: Sequence[Switch] = ()
    over_time_limit_s: float = inf

    @classmethod
    def of(cls, nodes: int) -> SimulatedSite:
        """Return a site of equal nodes n1, n2, ..., with Slurm's defaults."""
        return cls(Numbering.of(f"n{number}" for number in range(1, nodes + 1)), ((1 << nodes) - 1,))

    @property
    def everything(self) -> int:
        """All nodes."""
        return (1 << len(self.numbering.names)) - 1


@dataclass(slots=True)
class JobRun:
    """The course of one job: its nodes, its start, its first line and its end; inf if it never starts.

    `preempted_s` is when Slurm first preempted for it. `by` is the scheduler that started it, "main" or "backfill".
    """

    job: SimulatedJob
    nodes: int = 0
    start_s: float = inf
    first_line_s: float = inf
    end_s: float = inf
    preempted_s: float | None = None
    by: str = ""

    @property
    def wait_s(self) -> float:
        """From the submission to the first line."""
        return self.first_line_s - self.job.submit_s
