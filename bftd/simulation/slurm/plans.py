"""The walk of one backfill cycle through the queue, taken only as far as its outcome is needed.

A queue is long, and nearly all plans are for much later. An entry that could not start before some time, by what is
planned for the entries up to here, cannot start before it by what is planned for more: plans only take nodes. So a walk
that is to tell what starts before that time ends where no entry behind it could. It goes on from there when more is
asked for, and then tells what it would have told at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from bftd.pool.backfill.planner import Walk
from bftd.simulation.slurm.lines import WaitingJob

_MINUTE_S = 60.0
# A little later a little more will be asked for.
_MORE_S = 60.0


class Ahead:
    """A walk through the entries of some `lines`; those at the `places` are the only ones that it is about."""

    def __init__(self, lines: Sequence[WaitingJob], walk: Walk, places: Sequence[int]) -> None:
        self._lines = lines
        self._walk = walk
        self._places = places
        self._before_s = walk.calendar.now_s

    def step(self) -> bool:
        """Consider the next entry."""
        return self._walk.step()

    def go(self, before_s: float) -> None:
        """Go on until no entry behind could start before a time, or now."""
        walk = self._walk
        self._before_s = before_s = max(before_s, self._before_s)
        calendar, looked = walk.calendar, walk.looked
        most = calendar.ends.by(calendar.everything, 0, before_s).bit_count()
        lines = self._lines
        places = [place for place in self._places if place >= looked and lines[place].need.count <= most]
        while places and places[-1] >= walk.looked:
            if not self._could(lines[places[-1]]):
                places.pop()
            elif not self.step():
                places.clear()

    def _could(self, line: WaitingJob) -> bool:
        """Whether a line could start in time if those before it had no more nodes than now."""
        calendar, need = self._walk.calendar, line.need
        free = calendar.ends.by(line.part.allowed, 0, self._before_s)
        if free.bit_count() < need.count:
            return False
        space, limit_s = calendar.space, line.job.limit_s if line.job.limit_s > 0.0 else _MINUTE_S
        if self._before_s <= calendar.now_s:
            end_s = calendar.now_s + limit_s
            free = calendar.booked.free(free, calendar.booked.slots(calendar.now_s, end_s))
            return need.met(space.free(free, space.slots(calendar.now_s, end_s)))
        for begin_s in space.begins:
            if begin_s >= self._before_s:
                return False
            if need.met(space.free(free, space.slots(begin_s, begin_s + limit_s))):
                return True
        return False


class Plans(Ahead):
    """The plans of one backfill cycle, which its lines get as the walk comes to them.

    All that start before `told_s` are known.
    """

    def __init__(self, lines: Sequence[WaitingJob], walk: Walk) -> None:
        super().__init__(lines, walk, range(len(lines)))
        self.told_s = -inf
        for turn, line in enumerate(lines):
            line.plans, line.turn, line.known_s, line.known = self, turn, None, 0

    def tell(self, before_s: float) -> None:
        """Go on until all plans are known that start before a time."""
        if before_s > self.told_s:
            self.told_s = before_s + _MORE_S
            self.go(self.told_s)

    def step(self) -> bool:
        """Consider the next line; the lines of a job all have its earliest plan."""
        walk, turn = self._walk, self._walk.looked
        if not walk.step():
            for line in self._lines[turn:]:
                if line.plans is self:
                    line.plans = None
            return False
        line = self._lines[turn]
        plan = walk.later.get(line.entry.id)
        same = [one for one in line.lines if one.plans is self]
        over = all(one.turn <= turn for one in same)
        for one in same:
            if plan is not None:
                one.known_s, one.known = plan.start_s, plan.mask
            if over:
                one.plans = None
        return True

    def resolve(self, line: WaitingJob) -> None:
        """Go on until the plan of a line is known."""
        while line.plans is self and self.step():
            pass
