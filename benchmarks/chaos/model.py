"""The faults and the regular jobs of a run, drawn from its seed, and the figures of what came of them: pure."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

KILLED = ("worker", "agent", "driver", "daemon", "slurmstepd")
OF_SLURM = frozenset(
    {"kill_slurmstepd", "stop_slurmstepd", "cut_network", "hanging_epilog", "restart_slurmctld", "restart_slurmd"}
)
"""Faults of Slurm itself and of nodes, for which regular jobs wait without bftd too."""

KINDS = (
    *(f"kill_{who}" for who in KILLED),
    *(f"stop_{who}" for who in KILLED),
    "cut_network",
    "full_checkpoints",
    "full_ledger",
    "hanging_epilog",
    "restart_slurmctld",
    "restart_slurmd",
    "ignored_sigterm",
    "forked_away",
)

RULES = (
    "regular_with_pilot",
    "two_pilots",
    "two_drivers",
    "worker_beside_regular_job",
    "late_regular_job",
    "step_not_trained",
    "progress_went_back",
    "step_counted_twice",
    "trainer_failed",
    "wrong_result",
    "unfinished",
    "alarm_left",
    "daemon_error",
    "pilot_left",
    "orphan",
)

GIVE_BACK_BOUND_S = 5.0
"""The daemon's `give_back_bound_s`."""

SLURM_KILLS_S = 8.3
"""The time that Slurm itself takes to end a pilot that does not leave, where KillWait is 2 s."""

BOUND_S = GIVE_BACK_BOUND_S + SLURM_KILLS_S
SETTLED_S = 10.0
"""So long after a fault of Slurm's its nodes may still be out."""

PAUSE_S = 1.0
"""A trainer that makes no step for so long is interrupted."""

_APART_S, _LASTS_S = (2.0, 9.0), (1.0, 12.0)
_JOBS_APART_S, _JOB_NODES, _JOB_S = (6.0, 18.0), (1, 1, 1, 2), (2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: `after_s` after the end of the one before, for `length_s` if it has a length; `pick` chooses whom."""

    kind: str
    after_s: float
    length_s: float
    pick: float

    def of(self, every: Sequence[Any]) -> Any:
        """Return the one that is struck."""
        return every[int(self.pick * len(every))]


@dataclass(frozen=True, slots=True)
class RegularJob:
    """A job of so many whole nodes, submitted `after_s` after the one before."""

    after_s: float
    nodes: int
    run_s: float


def faults(seed: int, kinds: Collection[str]) -> Iterator[Fault]:
    """Draw faults for ever: each kind as often as any other."""
    draw = random.Random(f"faults {seed}")
    while True:
        for kind in draw.sample(sorted(kinds), len(kinds)):
            yield Fault(kind, draw.uniform(*_APART_S), draw.uniform(*_LASTS_S), draw.random())


def regular_jobs(seed: int) -> Iterator[RegularJob]:
    """Draw regular jobs for ever, so few that none has to wait for another."""
    draw = random.Random(f"jobs {seed}")
    while True:
        yield RegularJob(draw.uniform(*_JOBS_APART_S), draw.choice(_JOB_NODES), draw.uniform(*_JOB_S))


@dataclass(slots=True)
class Struck:
    """A fault that was struck, with whom and from when to when (unix seconds)."""

    kind: str
    whom: str
    begin_s: float
    end_s: float


@dataclass(slots=True)
class RegularStart:
    """A regular job's submission and its own first line (unix seconds), None where it never started."""

    id: str
    submit_s: float
    start_s: float | None = None


@dataclass(slots=True)
class TrainerEnd:
    """The end of a trainer; `rows_s` are the times of its steps (unix seconds)."""

    name: str
    finished: bool
    loss_ok: bool
    steps_counted_twice: int
    rows_s: list[float] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)


class Violations:
    """The things found to break a rule, each once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], str] = {}

    def add(self, rule: str, what: str, text: str = "") -> None:
        """Note that `what` breaks a rule."""
        assert rule in RULES, rule
        self._found.setdefault((rule, what), text or what)

    @property
    def counts(self) -> dict[str, int]:
        """The number of violations of each rule, 0 included."""
        found = Counter(rule for rule, _ in self._found)
        return {rule: found[rule] for rule in RULES}

    @property
    def texts(self) -> list[str]:
        """A line each."""
        return [f"{rule}: {text}" for (rule, _), text in self._found.items()]


def delay_s(job: RegularStart, struck: Iterable[Struck]) -> float | None:
    """Return how long a job waited while Slurm and its nodes were whole; None if it has not started."""
    if job.start_s is None:
        return None
    since_s = job.submit_s
    for fault in struck:
        until_s = fault.end_s + SETTLED_S
        if fault.kind in OF_SLURM and fault.begin_s < job.start_s and until_s > since_s:
            since_s = until_s
    return max(0.0, job.start_s - since_s)


def recovery_s(fault: Struck, trainers: Iterable[TrainerEnd]) -> float:
    """Return the seconds from a fault's end until every trainer that it interrupted trains again."""
    longest_s = 0.0
    for trainer in trainers:
        for before_s, after_s in zip(trainer.rows_s, trainer.rows_s[1:], strict=False):
            touches = before_s <= fault.end_s + PAUSE_S and after_s >= fault.begin_s
            if touches and after_s - before_s > PAUSE_S:
                longest_s = max(longest_s, after_s - fault.end_s)
    return longest_s


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value that `share` of the values do not exceed (nearest rank); None where there is none."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(len(ordered) * share) - 1)], 3) if ordered else None


def figures(
    minutes: float,
    struck: Sequence[Struck],
    jobs: Sequence[RegularStart],
    trainers: Sequence[TrainerEnd],
    give_backs_s: Mapping[str, float | None],
    orphans: int,
    violations: Violations,
) -> dict[str, Any]:
    """Return what `--json` prints; counts the jobs that started late among the violations."""
    delays_s = {job.id: delay_s(job, struck) for job in jobs}
    for id_, late_s in delays_s.items():
        if late_s is None or late_s > BOUND_S:
            violations.add("late_regular_job", id_, f"job {id_} waited {'for ever' if late_s is None else late_s}")
    recoveries_s = [recovery_s(fault, trainers) for fault in struck]
    known_s = [late_s for late_s in delays_s.values() if late_s is not None]
    return {
        "minutes": minutes,
        "faults": dict(sorted(Counter(fault.kind for fault in struck).items())),
        "violations": violations.counts,
        "regular_job_delay_max_s": percentile(known_s, 1.0),
        "bound_s": BOUND_S,
        "give_back_s": {key: give_backs_s.get(key) for key in ("p50", "p99", "max")},
        "recovery_s": {"p50": percentile(recoveries_s, 0.5), "max": percentile(recoveries_s, 1.0)},
        "orphans": orphans,
        "trainers": [
            {
                "name": trainer.name,
                "finished": trainer.finished,
                "loss_ok": trainer.loss_ok,
                "steps_counted_twice": trainer.steps_counted_twice,
                **trainer.more,
            }
            for trainer in trainers
        ],
        "found": violations.texts,
        "samples": {
            "faults": [asdict(fault) for fault in struck],
            "recovery_s": [round(value, 3) for value in recoveries_s],
            "regular_job_delay_s": [None if value is None else round(value, 3) for value in delays_s.values()],
        },
    }
