"""Crius as a policy of the simulated cluster: Algorithm 1 at arrivals and ends, opportunistic execution, deadlines.

Invariant: the allocations of a decision fit the cluster. A running job loses GPUs only if the throughput rises, or if
it was started opportunistically and the job that it overtook starts. (With deadlines, also if it would miss its own.)

The paper leaves these points open; here they are decided as follows:

- Throughput is normalised (each job's rate relative to that of its request), because iterations of different models do
  not add up. `objective="raw"` adds them up anyway.
- A restart counts as its cost spread over the work that a job has left.
- Jobs grow for their own sake only while no job waits.
- Decisions are made once per `interval_s` (None: at every arrival and end). The paper has `ROUND_S`.
- If `patience_s` is 0, which is nearest to the paper, waiting jobs are tried by age. Otherwise jobs that have waited
  for that long come first, by age, and then the others by the throughput that each of their GPUs adds.
- The oldest job whose patience has ended cannot starve. Jobs that came after it and were started since then are
  opportunistic: as soon as their GPUs and the idle ones suffice for its smallest cell, the latest of them are suspended
  and it starts. So it waits at most until the jobs that ran before have ended.
- Only for the first `look_ahead` waiting jobs may others be scaled; later ones only take idle GPUs.
"""

from __future__ import annotations

from bisect import insort

from studies.crius.options import Objective, Option, Options
from studies.crius.virtual import Virtual
from studies.simulation.engine import RESTART_S
from studies.simulation.types import Decision, Moment, Speeds

ROUND_S = 300.0
"""The time between two decisions (section 7 of the paper)."""

PATIENCE_S = 72 * 3600.0
"""The wait after which a job has a claim in our own `crius-patient`: longer than a weekend's backlog.

On an overloaded cluster all jobs wait long. With a short patience every job soon has a claim, and the queue is served
in order of age: on the paper's 64 GPUs with twice the work that they can do, jobs with patience 0 take 1.6 to 2.1 times
as long on average as with this one, while the slowest hundredth ends earlier. The value was chosen on seeds 0 to 2 of
trace cluster02, so benchmarks/crius/simulation.py takes other traces and seeds for its tables.
"""


class CriusPolicy:
    """The policy that chooses cells for all jobs. `speeds` are its estimates, which may differ from the true rates.

    `adaptive=False` keeps the requested number of GPUs, `heterogeneous=False` their type (the paper's Crius-NA and
    Crius-NH). With `deadlines`, only jobs that meet their deadline get GPUs, they are kept in time, and jobs that no
    cell can save are dropped (Crius-DDL); otherwise deadlines are ignored. A job that fits no cell is dropped.
    """

    def __init__(
        self,
        speeds: Speeds,
        *,
        depth: int = 3,
        objective: Objective = "normalised",
        adaptive: bool = True,
        heterogeneous: bool = True,
        deadlines: bool = False,
        restart_s: float = RESTART_S,
        look_ahead: int = 8,
        patience_s: float = 0.0,
        interval_s: float | None = None,
        name: str = "",
    ) -> None:
        self.name = name or "Crius" + "-NA" * (not adaptive) + "-NH" * (not heterogeneous) + "-DDL" * deadlines
        self.interval_s = interval_s
        self._options = Options(speeds, objective=objective, adaptive=adaptive, heterogeneous=heterogeneous)
        self._depth, self._look_ahead, self._patience_s = depth, look_ahead, patience_s
        self._restart_s, self._deadlines = restart_s, deadlines
        self._began_s: float | None = None
        self._rounds = -1
        self._waits_since_s: dict[str, float] = {}
        self._runs_since_s: dict[str, float] = {}

    def decide(self, moment: Moment) -> Decision:
        """Decide on all arrivals and ends since the last round (SchedArrival and SchedDeparture)."""
        if not self._is_due(moment.now_s):
            return Decision({each.job.id: each.allocation for each in moment.running})
        virtual = Virtual(moment, self._options, restart_s=self._restart_s, deadlines=self._deadlines)
        waiting = [each.job.id for each in moment.waiting]
        self._remember(moment, waiting)
        # a job's place in the queue is by its submission time, even after it was suspended
        order = {id: (job.submit_s, number) for number, (id, job) in enumerate(virtual.jobs.items())}
        waiting.sort(key=order.__getitem__)
        dropped = self._hopeless(virtual, waiting)
        waiting = [id for id in waiting if id not in dropped]
        if self._deadlines:
            self._rescue(virtual)
        # if jobs only arrived, no GPU has become free, so jobs that waited before need not be tried again
        alone = self.interval_s is None and not moment.ended and moment.arrived and not dropped
        only = moment.arrived if alone else None
        left = self._start(virtual, waiting, order, only)
        if only is None and not left:
            virtual.schedule(None, self._depth, grow=True)
        self._note(virtual, moment.now_s)
        return Decision(dict(virtual.held), frozenset(dropped))

    def _is_due(self, now_s: float) -> bool:
        """Whether this is the first moment of a round, or there are no rounds."""
        if self.interval_s is None:
            return True
        self._began_s = now_s if self._began_s is None else self._began_s
        rounds = int((now_s - self._began_s) / self.interval_s + 1e-9)
        due, self._rounds = rounds > self._rounds, max(rounds, self._rounds)
        return due

    def _remember(self, moment: Moment, waiting: list[str]) -> None:
        """Record since when the present jobs wait or run, and forget the others."""
        waits, runs = self._waits_since_s, self._runs_since_s
        self._waits_since_s = {id: waits.get(id, moment.now_s) for id in waiting}
        self._runs_since_s = {each.job.id: runs.get(each.job.id, each.since_s) for each in moment.running}

    def _note(self, virtual: Virtual, now_s: float) -> None:
        """Record since when jobs wait or run, after a decision."""
        for id in virtual.jobs:
            if id in virtual.held:
                self._waits_since_s.pop(id, None)
                self._runs_since_s.setdefault(id, now_s)
            else:
                self._runs_since_s.pop(id, None)
                self._waits_since_s.setdefault(id, now_s)

    def _hopeless(self, virtual: Virtual, waiting: list[str]) -> set[str]:
        """Return jobs that fit nowhere or cannot meet their deadline in any cell; running ones release their GPUs."""
        dropped = {id for id in waiting if not any(virtual.in_time(id, each) for each in virtual.options(id))}
        if self._deadlines:
            for id in list(virtual.held):
                if virtual.keeps_deadline(id) or any(virtual.in_time(id, each) for each in virtual.options(id)):
                    continue
                virtual.take(id)
                dropped.add(id)
        return dropped

    def _rescue(self, virtual: Virtual) -> None:
        """Give other cells to jobs that will miss their deadline because their estimate was too optimistic."""
        for id in [id for id in virtual.held if not virtual.keeps_deadline(id)]:
            held = virtual.held[id]
            virtual.take(id)
            if virtual.schedule(id, self._depth, grow=False) is None:
                virtual.give(id, held)

    def _start(
        self, virtual: Virtual, waiting: list[str], order: dict[str, tuple[float, int]], only: frozenset[str] | None
    ) -> list[str]:
        """Start all jobs that can start, in order of their turn; returns the jobs that go on waiting.

        Unless `only` is None, the search only tries its jobs; a job with a claim may start anyway.
        """
        queue = sorted((self._turn(virtual, id, order), id) for id in waiting)
        left: list[str] = []
        failed: set[tuple[object, ...]] = set()
        tried = 0
        reserved = False
        while queue:
            turn, id = queue.pop(0)
            job = virtual.jobs[id]
            kind = (job.model, job.gpus, job.gpu_type, job.deadline_s, virtual.fresh(id) or id)
            started = False
            if (only is None or id in only) and kind not in failed:
                # no job grows while others wait: it would take GPUs from them
                tried += 1
                depth = self._depth if tried <= self._look_ahead else 0
                started = virtual.schedule(id, depth, grow=not left and not queue) is not None
            # only the oldest job whose patience has ended has a claim; until it starts, no other job has one
            if not started and turn[0] == 0 and not reserved:
                suspended = self._overtake(virtual, id, order)
                started, reserved = suspended is not None, suspended is None
                for each in suspended or ():
                    insort(queue, (self._turn(virtual, each, order), each))
                only = None if suspended else only
            if started:
                failed.clear()
            else:
                failed.add(kind)
                left.append(id)
        return left

    def _turn(self, virtual: Virtual, id: str, order: dict[str, tuple[float, int]]) -> tuple[float, ...]:
        """Return the sort key of a waiting job: first impatient jobs by age, then others by throughput per GPU."""
        if virtual.now_s >= self._waits_since_s.get(id, virtual.now_s) + self._patience_s:
            return (0.0, *order[id])
        return (1.0, -virtual.share(id), *order[id])

    def _overtake(self, virtual: Virtual, id: str, order: dict[str, tuple[float, int]]) -> list[str] | None:
        """Start the oldest waiting job if suspending opportunistic jobs gives it a cell.

        Returns the suspended jobs, or None if it cannot start. The cell is the one that takes the fewest GPUs away.
        """
        since_s = self._waits_since_s.get(id, virtual.now_s) + self._patience_s
        guests = [
            each
            for each in virtual.held
            if order[each] > order[id]
            and self._runs_since_s.get(each, virtual.now_s) >= since_s
            and not (self._deadlines and virtual.jobs[each].deadline_s is not None)
        ]
        ways: list[tuple[tuple[float, ...], Option, list[str]]] = []
        for option in virtual.options(id):
            if not virtual.in_time(id, option):
                continue
            gpu_type, gpus = option.allocation.gpu_type, option.allocation.gpus
            there = sorted((each for each in guests if virtual.held[each].gpu_type == gpu_type), key=order.__getitem__)
            short = gpus - virtual.idle(gpu_type)
            if sum(virtual.held[each].gpus for each in there) < short:
                continue
            going: list[str] = []
            for each in reversed(there):
                if short <= 0:
                    break
                going.append(each)
                short -= virtual.held[each].gpus
            for each in list(reversed(going)):
                if short + virtual.held[each].gpus <= 0:
                    going.remove(each)
                    short += virtual.held[each].gpus
            lost = sum(virtual.held[each].gpus for each in going)
            ways.append(((lost, gpus, -option.value), option, going))
        if not ways:
            return None
        _, option, going = min(ways, key=lambda way: way[0])
        for each in going:
            virtual.take(each)
        virtual.give(id, option.allocation)
        return going
