"""Running jobs of the harvested partition, those that no lease stands behind, and how many of these bftd may cancel.

The bounds are there so that a wrong setting cannot empty a machine. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from bftd.core.timing import MINUTE_S

# Beyond a tenth of the jobs of the partition within this time it is a setting that is wrong, and no longer users.
WITHIN_S = 3600.0
SHARE = 0.1
# So many may be cancelled in a partition however few jobs run there.
FLOOR = 3


def most(running: int) -> int:
    """The most different jobs that may be cancelled within an hour while `running` jobs run in the partition."""
    return max(FLOOR, int(SHARE * running))


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A running job of the harvested partition: a pilot, or what a user started there himself.

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
class Stray:
    """A running job of the harvested partition that no lease stands behind, first seen without one at `seen_s`.

    It is `named` once it has been there for longer than a pilot whose lease is still on its way. `cancelled_s` is when
    bftd last tried to cancel it.
    """

    job: ElasticJob
    seen_s: float
    named: bool = False
    cancelled_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancels:
    """What was cancelled: `jobs` when each was first, of the last hour, and `attempts` of the last minute."""

    jobs: Mapping[str, float] = field(default_factory=dict)
    attempts: tuple[float, ...] = ()

    def at(self, now_s: float) -> Cancels:
        """Without what is too long ago to count."""
        if all(now_s - at_s < WITHIN_S for at_s in self.jobs.values()) and (
            not self.attempts or now_s - self.attempts[0] < MINUTE_S
        ):
            return self
        return Cancels(
            {id_: at_s for id_, at_s in self.jobs.items() if now_s - at_s < WITHIN_S},
            tuple(at_s for at_s in self.attempts if now_s - at_s < MINUTE_S),
        )

    def exceeded(self, due: Collection[str], running: int) -> bool:
        """Whether to cancel `due` too would be more than may be; those that are over by now ran as well."""
        together = self.jobs.keys() | set(due)
        return len(together) > most(running + len(self.jobs.keys() - set(due)))

    def left(self, per_min: int) -> int:
        """How many may still be cancelled in this minute."""
        return max(0, per_min - len(self.attempts))

    def with_(self, job: str, now_s: float) -> Cancels:
        """With one more attempt."""
        return Cancels({**self.jobs, job: self.jobs.get(job, now_s)}, (*self.attempts, now_s))

    def moved(self, by_s: float) -> Cancels:
        """With all times moved."""
        jobs = {id_: at_s + by_s for id_, at_s in self.jobs.items()}
        return replace(self, jobs=jobs, attempts=tuple(at_s + by_s for at_s in self.attempts))
