"""Virtual allocation (Crius, Algorithm 1): the planned allocations, changed job by job before they take effect."""

from __future__ import annotations

from collections.abc import Iterable

from studies.crius.options import Option, Options
from studies.crius.search import Change, Choice, Offer, search
from studies.simulation.types import Allocation, Moment, SimulatedJob

LATE = 1e-9
"""The relative tolerance of deadlines, for the rounding of sums."""


class Virtual:
    """The jobs of a moment with their allocations so far in this decision.

    A job is worth its option's value. A job that has run before pays for a new allocation with a restart: its worth is
    the mean over its remaining time, so a job near its end is not moved.
    """

    def __init__(self, moment: Moment, options: Options, *, restart_s: float, deadlines: bool) -> None:
        self._options, self._restart_s, self._deadlines = options, restart_s, deadlines
        self.now_s, self.capacity = moment.now_s, moment.capacity
        self.types = tuple(moment.capacity)
        self._index = {gpu_type: place for place, gpu_type in enumerate(self.types)}
        self.free = list(moment.capacity.values())
        self.jobs: dict[str, SimulatedJob] = {}
        self.left: dict[str, float] = {}
        self.real: dict[str, Allocation] = {}
        self.held: dict[str, Allocation] = {}
        self.numbers: dict[str, int] = {}
        self._changes: dict[str, list[tuple[bool, Change]]] = {}
        for one in moment.running:
            self._add(one.job, one.left)
            self.real[one.job.id] = one.allocation
            self.give(one.job.id, one.allocation)
        for each in moment.waiting:
            self._add(each.job, each.left)

    def _add(self, job: SimulatedJob, left: float) -> None:
        self.numbers[job.id] = len(self.jobs)
        self.jobs[job.id], self.left[job.id] = job, left

    def give(self, id: str, allocation: Allocation) -> None:
        """Give a job an allocation in place of any that it has."""
        self.take(id)
        self.held[id] = allocation
        self.free[self._index[allocation.gpu_type]] -= allocation.gpus

    def take(self, id: str) -> None:
        """Take away a job's allocation, if any."""
        self._changes.pop(id, None)
        allocation = self.held.pop(id, None)
        if allocation is not None:
            self.free[self._index[allocation.gpu_type]] += allocation.gpus

    def fresh(self, id: str) -> bool:
        """Whether a job has not run yet."""
        return id not in self.real and self.left[id] >= self.jobs[id].iterations

    def options(self, id: str) -> tuple[Option, ...]:
        """Return all cells of a job that fit in the empty cluster."""
        return self._options.of(self.jobs[id], self.capacity)

    def share(self, id: str) -> float:
        """Return the most that one GPU adds to the throughput with a job, which must have an option."""
        return self._options.share(self.jobs[id], self.capacity)

    def idle(self, gpu_type: str) -> int:
        """Return the number of idle GPUs of a type."""
        return self.free[self._index[gpu_type]]

    def worth(self, id: str, option: Option) -> float:
        """Return a job's contribution to the cluster's throughput in an option, less its restart."""
        if self._stays(id, option) or option.rate <= 0:
            return option.value
        left = self.left[id]
        return option.value * left / (left + option.rate * self._restart_s) if left > 0 else 0.0

    def value(self, id: str) -> float:
        """Return a job's contribution to the throughput in its present allocation."""
        held = self.held.get(id)
        return self.worth(id, self._options.at(self.jobs[id], held, self.capacity)) if held else 0.0

    def objective(self) -> float:
        """Return the throughput of all jobs, less the cost of restarts."""
        return sum(self.value(id) for id in self.held)

    def in_time(self, id: str, option: Option) -> bool:
        """Whether a job ends by its deadline if it has an option from now on; always true without a deadline."""
        deadline_s = self.jobs[id].deadline_s
        if not self._deadlines or deadline_s is None:
            return True
        if option.rate <= 0:
            return False
        end_s = self.now_s + (0.0 if self._stays(id, option) else self._restart_s) + self.left[id] / option.rate
        return end_s <= deadline_s + LATE * max(1.0, abs(deadline_s))

    def keeps_deadline(self, id: str) -> bool:
        """Whether a job that has GPUs ends by its deadline with them."""
        return self.in_time(id, self._options.at(self.jobs[id], self.held[id], self.capacity))

    def _stays(self, id: str, option: Option) -> bool:
        """Whether an option costs no restart."""
        return self.real.get(id) == option.allocation or self.fresh(id)

    def offers(self, id: str) -> list[Offer]:
        """Return the cells that a waiting job could have."""
        found = []
        for option in self.options(id):
            if self.in_time(id, option):
                found.append(Offer(option.allocation, self.worth(id, option), self._need(option.allocation)))
        return found

    def changes(self, ids: Iterable[str], *, grow: bool) -> list[Change]:
        """Return all other cells of jobs that have GPUs; without `grow`, only those with no more GPUs than now."""
        found: list[Change] = []
        for id in ids:
            if id not in self._changes:
                self._changes[id] = self._of(id)
            found += [change for grows, change in self._changes[id] if grow or not grows]
        return found

    def _of(self, id: str) -> list[tuple[bool, Change]]:
        """Return all other cells of one job, each with whether it has more GPUs; the inner loop of a decision."""
        held, now, number, left = self.held[id], self.value(id), self.numbers[id], self.left[id]
        real, fresh, restart_s = self.real.get(id), self.fresh(id), self._restart_s
        limited = self._deadlines and self.jobs[id].deadline_s is not None
        back = real is not None and real != held  # it can return to its real allocation without a restart
        found = []
        for option, allocation, rate, worth, grows, need in self._options.others(self.jobs[id], held, self.capacity):
            if limited and not self.in_time(id, option):
                continue
            if not fresh and not (back and allocation == real):
                worth = worth * left / (left + rate * restart_s) if left > 0 else 0.0
            found.append((grows, Change(number, allocation, worth - now, need)))
        return found

    def _need(self, allocation: Allocation) -> tuple[int, ...]:
        return tuple(allocation.gpus if each == allocation.gpu_type else 0 for each in self.types)

    def schedule(self, id: str | None, depth: int, *, grow: bool) -> Choice | None:
        """Apply the best choice that places a job (or none), and return it; None if there is none (CellBasedSched).

        A choice that lowers the throughput is never made.
        """
        offers = self.offers(id) if id is not None else []
        if id is not None and not offers:
            return None
        others = [each for each in self.held if each != id]
        choice = search(offers, self.changes(others, grow=grow) if depth else [], self.free, depth)
        if choice is None:
            return None
        names = list(self.jobs)
        for change in choice.changes:
            self.take(names[change.job])
        for change in choice.changes:
            self.give(names[change.job], change.allocation)
        if id is not None and choice.offer is not None:
            self.give(id, choice.offer.allocation)
        return choice
