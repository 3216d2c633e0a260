"""Running jobs of the harvested partition, those without a lease, and the bounds on how many of these bftd may cancel.

The bounds are there so that a wrong setting cannot empty a machine. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from bftd.core.model.timing import MINUTE_S

# More than a tenth of the partition's jobs within this time points to a wrong setting, and not to users.
WITHIN_S = 3600.0
SHARE = 0.1
# This many may be cancelled in a partition however few jobs run there.
FLOOR = 3


def most(running: int) -> int:
    """Return the most different jobs that may be cancelled within an hour while `running` jobs run in the partition."""
    return max(FLOOR, int(SHARE * running))


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A running job of the harvested partition: a pilot, or a job that a user started there directly.

    `submit_s` and `start_s` are Slurm's own wall times; `limit_s` is None without a time limit.
    """

    id: str
    user: str
    account: str
    nodes: tuple[str, ...]
    start_s: float | None = None
    submit_s: float = 0.0
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class OrphanJob:
    """A running job of the harvested partition without a lease, first seen without one at `seen_s`.

    It is `named` once it has been there for longer than a pilot whose lease is still on its way. `cancelled_s` is when
    bftd last tried to cancel it.
    """

    job: ElasticJob
    seen_s: float
    named: bool = False
    cancelled_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancels:
    """Past cancellations: the first try at each of `jobs` in the last hour, and `attempts` of the last minute."""

    jobs: Mapping[str, float] = field(default_factory=dict)
    attempts: tuple[float, ...] = ()

    def at(self, now_s: float) -> Cancels:
        """Return the cancellations without those too long ago to count."""
        if all(now_s - at_s < WITHIN_S for at_s in self.jobs.values()) and (
            not self.attempts or now_s - self.attempts[0] < MINUTE_S
        ):
            return self
        return Cancels(
            {id_: at_s for id_, at_s in self.jobs.items() if now_s - at_s < WITHIN_S},
            tuple(at_s for at_s in self.attempts if now_s - at_s < MINUTE_S),
        )

    def exceeded(self, due: Collection[str], running: int) -> bool:
        """Whether cancelling `due` too would exceed the bound; cancelled jobs that have ended count as running."""
        together = self.jobs.keys() | set(due)
        return len(together) > most(running + len(self.jobs.keys() - set(due)))

    def left(self, per_min: int) -> int:
        """Return how many jobs may still be cancelled in this minute."""
        return max(0, per_min - len(self.attempts))

    def with_(self, job: str, now_s: float) -> Cancels:
        """Return the cancellations with one more attempt."""
        return Cancels({**self.jobs, job: self.jobs.get(job, now_s)}, (*self.attempts, now_s))

    def moved(self, by_s: float) -> Cancels:
        """Return the cancellations with all times moved."""
        jobs = {id_: at_s + by_s for id_, at_s in self.jobs.items()}
        return replace(self, jobs=jobs, attempts=tuple(at_s + by_s for at_s in self.attempts))
