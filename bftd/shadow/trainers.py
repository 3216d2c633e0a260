"""The imaginary trainers: an endless list of the paper's networks, training on the nodes that the core lends them.

A pilot is placed when its node is lent, works `WARM_UP_S` later, and is gone when it is revoked. Resizes cost what was
measured with the project's Horovod back-end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from bftd.core.model.domain import Lease, State, Trainer
from bftd.core.model.events import Event, Registered, Reported
from bftd.pool.synthetic import PREFIX
from bftd.protocol.reports import ProgressReport, Report, ResizeReport, SuspendReport
from bftd.simulation.drivers import resize_costs
from bftd.simulation.drivers.driver import Charge, Drivers, SimulatedDriver, Terms, registration
from bftd.simulation.drivers.networks import TABLE_2, representative
from bftd.simulation.drivers.trainers import SimTrainer

# A driver reports its progress when its speed changes, and at least this often.
PROGRESS_EVERY_S = 60.0
# Samples that count as one step, a usual batch.
STEP_SAMPLES = 256

NETWORKS = tuple(
    replace(spec, up_cost_s=resize_costs.UP_STALL_S, down_cost_s=resize_costs.DOWN_STALL_S) for spec in representative()
)
# Reported progress is never taken back, so no trainer ever owes samples.
_TERMS = Terms(warm_up_s=resize_costs.WARM_UP_S, debt=False, prefix=PREFIX)


def in_order(trainers: Mapping[str, Trainer]) -> dict[str, Trainer]:
    """Return imaginary trainers in order of arrival: by number, as several may arrive at the same time."""
    return {id_: trainers[id_] for id_ in sorted(trainers, key=_number)}


class ImaginaryTrainers:
    """The active imaginary trainers and their drivers; `earned` counts all their samples, less charges."""

    def __init__(self, state: State, now_s: float) -> None:
        """Continue with the trainers and leases of `state`, those of the ledger."""
        self.earned = 0.0
        self.drivers = Drivers(_TERMS, self)
        self._reported: dict[str, tuple[float, float]] = {}
        self._last = max(map(_number, state.trainers), default=0)
        for trainer in state.trainers.values():
            if trainer.active:
                self._resume(trainer, state.leases.values(), now_s)

    @property
    def ids(self) -> Iterable[str]:
        """The ids of the active trainers, in order of arrival."""
        return self.drivers.in_play.keys()

    @property
    def rate(self) -> float:
        """The samples/s of all trainers together."""
        return self.drivers.rate

    def take_off(self, time_s: float, charge: Charge, samples: float) -> None:
        """Subtract lost samples; shadow mode records neither their cause nor their time."""
        self.earned -= samples

    def stand_still(self, time_s: float, node_s: float) -> None:
        """Do nothing: shadow mode does not count node-seconds of trainers."""

    def advance(self, now_s: float, counts: bool) -> None:
        """Let all trainers work until `now_s`; unobserved time does not count."""
        for driver in self.drivers.in_play.values():
            before = driver.samples
            if counts:
                driver.advance(now_s)
            driver.since_s = now_s
            self.earned += driver.samples - before

    def move(self, by_s: float) -> None:
        """Shift all times by `by_s`: the clock was set."""
        self._reported = {id_: (rate, at_s + by_s) for id_, (rate, at_s) in self._reported.items()}
        for driver in self.drivers.in_play.values():
            driver.move(by_s)

    def events(self, now_s: float, leases: Iterable[Lease], wanted: int) -> list[Event]:
        """Return the drivers' reports at `now_s`: finished and new trainers, warm nodes, and progress.

        Nothing is reported for `leases` revoked since the drivers last obeyed. `wanted` is the number of trainers there
        should be.
        """
        revoked = {lease.node for lease in leases if not lease.live}
        events: list[Event] = []
        for id_, driver in list(self.drivers.in_play.items()):
            if driver.done_s <= now_s:
                events += self._finished(driver, now_s)
                continue
            before = driver.training
            ready = driver.warm(now_s)
            reports: list[Report] = _resized(before, driver.training, now_s)
            reports += [driver.report(node, "working", now_s) for node in ready if node not in revoked]
            reports += self._progress(driver, now_s)
            if reports:
                events.append(Reported(now_s, id_, tuple(reports)))
        while len(self.drivers.in_play) < wanted:
            events.append(self._next(now_s))
        return events

    def obey(self, now_s: float, leases: Iterable[Lease]) -> list[Event]:
        """Place new leases and leave revoked ones; returns the drivers' reports on it."""
        in_play = self.drivers.in_play
        before = {id_: driver.training for id_, driver in in_play.items()}
        reports = self.drivers.obey(leases, now_s)
        self.drivers.resize(now_s)
        events: list[Event] = []
        for id_, of_driver in reports.items():
            resized = _resized(before[id_], in_play[id_].training, now_s) if id_ in in_play else []
            events.append(Reported(now_s, id_, (*of_driver, *resized)))
        return events

    def _finished(self, driver: SimulatedDriver, now_s: float) -> list[Event]:
        ended = self.drivers.finish(driver, now_s)
        self._reported.pop(driver.id, None)
        return [Reported(now_s, driver.id, (_progressed(driver, now_s),)), *ended]

    def _progress(self, driver: SimulatedDriver, now_s: float) -> list[Report]:
        rate, reported_s = self._reported.get(driver.id, (0.0, now_s))
        if rate == driver.rate and (rate == 0.0 or now_s - reported_s < PROGRESS_EVERY_S):
            return []
        self._reported[driver.id] = (driver.rate, now_s)
        progress = _progressed(driver, now_s)
        return [progress] if driver.rate > 0 else [progress, SuspendReport(now_s, progress.step)]

    def _next(self, now_s: float) -> Registered:
        self._last += 1
        spec = _spec(self._last)
        id_ = f"{PREFIX}{self._last}"
        self.drivers.add(id_, spec, now_s)
        name = f"{spec.kind}-{self._last}"
        # each has a user of its own, so that none reaches a cap per user
        request = registration(spec, spec.curve, resize_costs.WARM_UP_S, id_=id_, name=name, user=id_)
        return Registered(now_s, request)

    def _resume(self, trainer: Trainer, leases: Iterable[Lease], now_s: float) -> None:
        driver = self.drivers.add(trainer.id, _spec(_number(trainer.id)), trainer.arrived_s)
        driver.samples, driver.since_s = trainer.samples, now_s
        for lease in leases:
            if lease.trainer == trainer.id and lease.job_id is not None:
                self.drivers.hold(driver, lease)
                if lease.phase != "working":
                    driver.warming[lease.node] = (lease.placed_s or now_s) + resize_costs.WARM_UP_S
        driver.training = len(driver.leases) - len(driver.warming)
        driver.pace()


def _progressed(driver: SimulatedDriver, now_s: float) -> ProgressReport:
    return ProgressReport(
        at_s=now_s,
        step=int(driver.samples // STEP_SAMPLES),
        samples=driver.samples,
        samples_per_s=driver.rate,
        nodes=driver.training,
    )


def _resized(before: int, after: int, now_s: float) -> list[Report]:
    """Return the driver's report of a resize of a trainer that continues; a start or a suspension is none.

    It reports no stall: the daemon then assumes the trainer's stated costs.
    """
    if not before or not after or before == after:
        return []
    return [ResizeReport(now_s, before, after, "up" if after > before else "down")]


def _number(id_: str) -> int:
    return int(id_.removeprefix(PREFIX))


def _spec(number: int) -> SimTrainer:
    """Return the `number`-th trainer to arrive, counted from 1."""
    return NETWORKS[(number - 1) % len(TABLE_2)]
