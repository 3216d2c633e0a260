"""The nodes of the simulated cluster: what is on them, and which of them Slurm chooses, pilots or not."""

from __future__ import annotations

from collections.abc import Callable
from math import floor

from bftd.pool.backfill.model import Component
from bftd.pool.backfill.node_choice import NodeNeed, for_plan
from bftd.simulation.slurm.events import Events
from bftd.simulation.slurm.model import SimulatedSite
from bftd.simulation.slurm.switches import Tree

NodeChoice = Callable[[int, NodeNeed], int]
"""Picks the nodes of a job that starts: arguments are the idle nodes that would do, and the need."""


class Nodes(Events):
    """The nodes by what is on them, as masks, at the time `now_s`.

    `plan_choice` is the choice of nodes for plans where a topology decides.
    """

    def __init__(self, site: SimulatedSite, choice: NodeChoice | None) -> None:
        super().__init__()
        self.site = site
        self.everything = site.everything
        self.busy = self.pilots = self.leaving = self.completing = self.down = 0
        self.pilot_age: dict[int, float] = {}
        by_order = site.scheduler.one_by_order
        tree = Tree(site.switches) if site.switches else None
        self.plan_choice: NodeChoice | None = None
        if tree is not None:
            self.plan_choice = lambda free, need: tree.chosen(free, need, site.weights, one_by_order=by_order)
        self._for_plan = self.plan_choice or (
            lambda free, need: for_plan(free, need, site.weights, one_by_order=by_order)
        )
        self.choice = choice or self._for_plan

    @property
    def idle(self) -> int:
        """The nodes that are up and without a job or pilot."""
        return self.everything & ~(self.busy | self.pilots | self.leaving | self.completing | self.down)

    def soon_reserved(self, limit_s: float) -> int:
        """Return the nodes of reservations that a job of this limit would reach into."""
        found, now_s = 0, floor(self.now_s)
        for booking in self.site.bookings:
            if booking.end_s > now_s and now_s + limit_s > booking.start_s:
                found |= booking.mask
        return found

    def holds(self, part: Component, need: NodeNeed, limit_s: float, open_: int) -> bool:
        """Whether a job that does not fit closes its partition; not if reservations or outages alone are in its way."""
        some = part.allowed & self.everything & ~self.soon_reserved(limit_s)
        if not need.met(some):
            return False
        some &= open_
        return some.bit_count() >= need.count or bool(some & ~self.idle)

    def with_pilots(self, mask: int, need: NodeNeed) -> int:
        """Return the nodes that Slurm chooses where pilots have to go; 0 if the job does not fit even so."""
        free, lent = mask & self.idle, mask & self.pilots
        if not need.met(free | lent):
            return 0
        for bit in sorted(bits(lent), key=self.pilot_age.__getitem__, reverse=self.site.youngest_first):
            free |= bit
            if free.bit_count() >= need.count and need.met(free):
                break
        return self.choice(free, need)

    def backfilled(self, free: int, need: NodeNeed) -> int:
        """Return the nodes of a job that backfill starts, pilots or not."""
        idle = free & (self.idle | self.completing)  # it is seen only later that some are COMPLETING
        if idle.bit_count() >= need.count and need.met(idle):
            return self.choice(idle, need)
        return self.with_pilots(free, need) or self._for_plan(free, need)


def bits(mask: int) -> list[int]:
    """Return the nodes of a set, each by itself, from the first on."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low)
        mask ^= low
    return found
