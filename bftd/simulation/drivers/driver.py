"""Simulated drivers: each obeys the daemon at once, and its trainer earns samples on the nodes that it holds.

Nodes that were lent warm up while the others train on; then a resize stands still for as long as it costs. The drivers
have no clock: the caller passes the time, a replay at every event and shadow mode at every snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, Protocol

from bftd.core.model.domain import Lease
from bftd.core.model.events import Event, Finished, Reported
from bftd.protocol.lease import LeaseState, Phase
from bftd.protocol.registration import Registration
from bftd.protocol.reports import LeaseReport
from bftd.protocol.sizes import Sizes
from bftd.simulation.drivers.trainers import SimTrainer
from milp import Points

# Samples lost to a resize that the daemon wants, to nodes that are taken away, and beyond a trainer's work.
Charge = Literal["rescale", "preempt", "overshoot"]


class Books(Protocol):
    """A receiver of every charge."""

    def take_off(self, time_s: float, charge: Charge, samples: float) -> None:
        """Charge samples; they may be 0."""
        ...

    def stand_still(self, time_s: float, node_s: float) -> None:
        """Record node-seconds, possibly 0, in which nodes that take part stood still for a resize from `time_s` on."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """The rules shared by all drivers of one simulation.

    A node takes part in training `warm_up_s` after it was lent, at once if that is 0. With `startup_charge` a start on
    warm nodes costs R_up too. With `debt` a trainer may lose samples that it has yet to earn. Times less than
    `instant_s` apart count as equal. A pilot's job id is `prefix` followed by the id of its lease.
    """

    warm_up_s: float = 0.0
    startup_charge: bool = False
    debt: bool = True
    instant_s: float = 0.0
    prefix: str = ""

    def pilot(self, lease: str) -> str:
        """Return the job id of a lease's pilot."""
        return self.prefix + lease


class SimulatedDriver:
    """One driver and its trainer: it has the pilots of `leases`, by node, and `training` of them take part.

    `warming` maps the other nodes to the times when they take part. `samples` counts up to `since_s`; from then on the
    trainer earns `rate` samples/s. The cost of a resize is subtracted at once, so `samples` may be lower right after
    it. For `still_s` more seconds the trainer stands still on all its nodes: the seconds charged, one resize after
    another.
    """

    __slots__ = (
        "_books",
        "_terms",
        "admitted_s",
        "id",
        "leases",
        "rate",
        "samples",
        "since_s",
        "spec",
        "still_s",
        "training",
        "warming",
    )

    def __init__(self, id_: str, spec: SimTrainer, admitted_s: float, terms: Terms, books: Books) -> None:
        self.id = id_
        self.spec = spec
        self.admitted_s = admitted_s
        self.leases: dict[str, str] = {}
        self.warming: dict[str, float] = {}
        self.training = 0
        self.rate = 0.0
        self.samples = 0.0
        self.since_s = admitted_s
        self.still_s = 0.0
        self._terms = terms
        self._books = books

    @property
    def done_s(self) -> float:
        """The time when its work is done at the present rate."""
        work = self.spec.work_samples
        if self.samples >= work:
            return self.since_s
        return self.since_s + (work - self.samples) / self.rate if self.rate > 0 else inf

    def advance(self, now_s: float) -> None:
        """Earn samples up to `now_s`."""
        passed_s = now_s - self.since_s
        self.samples += self.rate * passed_s
        stood_s = min(self.still_s, passed_s)
        self.still_s -= stood_s
        self._books.stand_still(self.since_s, self.training * stood_s)
        self.since_s = now_s

    def move(self, by_s: float) -> None:
        """Shift all its times by `by_s`: the clock was set."""
        self.admitted_s += by_s
        self.since_s += by_s
        self.warming = {node: ready_s + by_s for node, ready_s in self.warming.items()}

    def report(self, node: str, state: LeaseState, now_s: float) -> LeaseReport:
        """Report that the lease of a node has come to `state`."""
        lease = self.leases[node]
        return LeaseReport(now_s, lease, state, self._terms.pilot(lease))

    def leave(self, node: str, now_s: float) -> LeaseReport:
        """End the pilot on a node, and report it."""
        report = self.report(node, "ended", now_s)
        del self.leases[node]
        return report

    def grow(self, nodes: Sequence[str], now_s: float) -> None:
        """Train on more nodes as soon as they are warm."""
        self.advance(now_s)
        if self._terms.warm_up_s:
            self.warming |= dict.fromkeys(nodes, now_s + self._terms.warm_up_s)
        else:
            self._join(len(nodes), now_s)

    def shrink(self, nodes: Sequence[str], now_s: float, charge: Charge) -> None:
        """Train on without some nodes; the loss of nodes that were still warming up costs nothing."""
        self.advance(now_s)
        lost = sum(self.warming.pop(node, None) is None for node in nodes)
        if lost:
            self._charge(now_s, charge, self.spec.down_cost_s)
            self.training -= lost
        self.pace()

    def warm(self, now_s: float) -> list[str]:
        """Let the nodes that are warm take part, and return them; the others trained on meanwhile."""
        ready = [node for node, ready_s in self.warming.items() if ready_s <= now_s + self._terms.instant_s]
        if ready:
            self.advance(now_s)
            for node in ready:
                del self.warming[node]
            self._join(len(ready), now_s)
        return ready

    def finish(self, now_s: float) -> list[Event]:
        """End the trainer, whose work is done, and leave all nodes; samples beyond its work do not count."""
        self.advance(now_s)
        self._books.take_off(now_s, "overshoot", max(0.0, self.samples - self.spec.work_samples))
        self.samples = self.spec.work_samples
        events: list[Event] = [Finished(now_s, self.id, exit_code=0, reason="its work is done")]
        if self.leases:
            ended = tuple(self.report(node, "ended", now_s) for node in self.leases)
            events.append(Reported(now_s, self.id, ended))
        return events

    def pace(self) -> None:
        """Continue at the rate of the nodes that take part now."""
        self.rate = self.spec.rates[self.training]

    def _join(self, nodes: int, now_s: float) -> None:
        """Let more nodes take part from now on."""
        starts = self.rate == 0.0
        self._charge(now_s, "rescale", self.spec.up_cost_s)
        self.training += nodes
        self.pace()
        if starts and self._terms.startup_charge:
            self._charge(now_s, "rescale", self.spec.up_cost_s)

    def _charge(self, now_s: float, charge: Charge, stall_s: float) -> None:
        """Stand still for `stall_s` at the present rate."""
        samples = self.rate * stall_s
        if self.rate > 0:
            self.still_s += stall_s
        if not self._terms.debt:
            samples = min(self.samples, samples)
        self.samples -= samples
        self._books.take_off(now_s, charge, samples)


class Drivers:
    """The drivers of the active trainers, by trainer and in order of arrival.

    `holders` maps each node to the trainer that holds it, and `pilots` each pilot's job id to its node.
    """

    def __init__(self, terms: Terms, books: Books) -> None:
        self.terms = terms
        self.books = books
        self.in_play: dict[str, SimulatedDriver] = {}
        self.holders: dict[str, str] = {}
        self.pilots: dict[str, str] = {}
        # Nodes by trainer, lent or revoked but not yet reflected in the trainer's size.
        self._joining: dict[str, list[str]] = defaultdict(list)
        self._leaving: dict[str, list[str]] = defaultdict(list)

    @property
    def rate(self) -> float:
        """The samples/s of all trainers together."""
        return sum(driver.rate for driver in self.in_play.values())

    @property
    def training(self) -> int:
        """The number of nodes that take part: those held less those that warm up."""
        return sum(driver.training for driver in self.in_play.values())

    def add(self, id_: str, spec: SimTrainer, admitted_s: float) -> SimulatedDriver:
        """Add a driver without nodes."""
        driver = self.in_play[id_] = SimulatedDriver(id_, spec, admitted_s, self.terms, self.books)
        return driver

    def hold(self, driver: SimulatedDriver, lease: Lease) -> None:
        """Record that a driver has placed the pilot of a lease."""
        driver.leases[lease.node] = lease.id
        self.holders[lease.node] = lease.trainer
        self.pilots[self.terms.pilot(lease.id)] = lease.node

    def done(self, now_s: float) -> list[SimulatedDriver]:
        """Return the drivers whose work is done."""
        return [driver for driver in self.in_play.values() if driver.done_s <= now_s + self.terms.instant_s]

    def finish(self, driver: SimulatedDriver, now_s: float) -> list[Event]:
        """Remove a driver whose work is done; returns its events for the daemon."""
        del self.in_play[driver.id]
        for node, lease in driver.leases.items():
            del self.holders[node]
            del self.pilots[self.terms.pilot(lease)]
        return driver.finish(now_s)

    def obey(self, leases: Iterable[Lease], now_s: float) -> dict[str, list[LeaseReport]]:
        """Place a pilot for each new lease and end that of each revoked one; returns the reports by trainer.

        The trainers change their sizes in `resize`, once for all leases of one instant.
        """
        reports: dict[str, list[LeaseReport]] = defaultdict(list)
        placed: Phase = "placed" if self.terms.warm_up_s else "working"
        for lease in leases:
            driver = self.in_play.get(lease.trainer)
            if not lease.live:
                if driver is not None and driver.leases.get(lease.node) == lease.id:
                    reports[lease.trainer].append(driver.leave(lease.node, now_s))
                    del self.holders[lease.node]
                    del self.pilots[self.terms.pilot(lease.id)]
                    self._leaving[lease.trainer].append(lease.node)
                else:  # its driver is gone, or never placed this pilot
                    report = LeaseReport(now_s, lease.id, "ended", self.terms.pilot(lease.id))
                    reports[lease.trainer].append(report)
            elif lease.job_id is None and driver is not None:
                self.hold(driver, lease)
                reports[lease.trainer].append(driver.report(lease.node, placed, now_s))
                self._joining[lease.trainer].append(lease.node)
        return reports

    def resize(self, now_s: float) -> None:
        """Carry out what `obey` was told since: first trainers that lose nodes, then those that get some."""
        for id_, nodes in self._leaving.items():
            self.in_play[id_].shrink(nodes, now_s, "rescale")
        for id_, nodes in self._joining.items():
            self.in_play[id_].grow(nodes, now_s)
        self._leaving.clear()
        self._joining.clear()

    def lose(self, nodes: Iterable[str], now_s: float) -> list[Event]:
        """Remove nodes that are gone from their drivers at once; returns the events of each driver that had some."""
        lost: dict[str, list[str]] = defaultdict(list)
        for node in nodes:
            if (holder := self.holders.pop(node, None)) is not None:
                lost[holder].append(node)
        events: list[Event] = []
        for id_, gone in lost.items():
            driver = self.in_play[id_]
            reports = []
            for node in gone:
                del self.pilots[self.terms.pilot(driver.leases[node])]
                if node in driver.warming:  # else the daemon would conclude that the pilot failed
                    reports.append(driver.report(node, "leaving", now_s))
                reports.append(driver.leave(node, now_s))
            driver.shrink(gone, now_s, "preempt")
            events.append(Reported(now_s, id_, tuple(reports)))
        return events

    def warm(self, now_s: float) -> list[Event]:
        """Let all nodes that are warm take part; returns the drivers' events."""
        events: list[Event] = []
        for id_, driver in self.in_play.items():
            if ready := driver.warm(now_s):
                reports = tuple(driver.report(node, "working", now_s) for node in ready)
                events.append(Reported(now_s, id_, reports))
        return events


def registration(spec: SimTrainer, points: Points, warm_up_s: float, *, id_: str, name: str, user: str) -> Registration:
    """Return the registration of a simulated trainer that is planned by the curve `points`."""
    given = tuple(point for point in points if point[0] > 0)
    if given[-1][0] < spec.nodes_max:  # constant beyond, as the core would let it rise
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
