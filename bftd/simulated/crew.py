"""A simulated trainer at work: what it earns between two events, and what its resizes cost it."""

from __future__ import annotations

from math import inf

from bftd.protocol.registration import Registration
from bftd.protocol.sizes import Sizes
from bftd.simulated.trainers import Points, SimTrainer


def registration(spec: SimTrainer, points: Points, warm_up_s: float, *, id_: str, name: str, user: str) -> Registration:
    """How a simulated trainer that is planned by the curve `points` introduces itself."""
    given = tuple(point for point in points if point[0] > 0)
    if given[-1][0] < spec.nodes_max:  # constant beyond, where the core would go on rising
        given = (*given, (spec.nodes_max, given[-1][1]))
    return Registration(
        id=id_,
        name=name,
        user=user,
        backend="simulated",
        sizes=Sizes(spec.nodes_min, spec.nodes_max),
        curve=given,
        up_cost_s=spec.up_cost_s,
        down_cost_s=spec.down_cost_s,
        warm_up_s=warm_up_s,
    )


class Crew:
    """One trainer that was admitted: `held` nodes are its own, all but the `warming` ones take part in training.

    `samples` counts up to `since_s`, and from there on it earns `rate` samples/s. What its resizes and preemptions
    cost is taken off at once, so that right after one `samples` may be lower than before.
    """

    __slots__ = ("_work", "admitted_s", "held", "rate", "samples", "since_s", "spec", "warming")

    def __init__(self, spec: SimTrainer, admitted_s: float) -> None:
        self.spec = spec
        self.admitted_s = admitted_s
        self.held = 0
        self.warming: dict[str, float] = {}
        self.rate = 0.0
        self.samples = 0.0
        self.since_s = admitted_s
        self._work = spec.work_samples

    @property
    def done_s(self) -> float:
        """When its work is done at the present rate."""
        if self.samples >= self._work:
            return self.since_s
        return self.since_s + (self._work - self.samples) / self.rate if self.rate > 0 else inf

    @property
    def overshoot(self) -> float:
        """Samples beyond its work."""
        return max(0.0, self.samples - self._work)

    @property
    def working(self) -> int:
        """How many nodes take part in training."""
        return self.held - len(self.warming)

    def advance(self, now_s: float) -> None:
        """Earn up to `now_s`."""
        self.samples += self.rate * (now_s - self.since_s)
        self.since_s = now_s

    def pace(self) -> None:
        """Go on at the rate of the nodes that work now."""
        self.rate = self.spec.rates[self.working]
