"""The imaginary trainers: an endless list of the paper's networks, at work on what the core lends them.

A pilot is placed when its node is lent, works `WARM_UP_S` later, and is gone when it is revoked. Resizes cost what the
project's Horovod back-end was measured to cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from bftd.core.domain import Lease, State, Trainer
from bftd.core.events import Event, Registered, Reported
from bftd.pool.imagined import PREFIX
from bftd.protocol.reports import ProgressReport, Report, ResizeReport, SuspendReport
from bftd.simulated import measured
from bftd.simulated.driver import Charge, Drivers, SimulatedDriver, Terms, registration
from bftd.simulated.networks import TABLE_2, representative
from bftd.simulated.trainers import SimTrainer

# A driver reports its progress when its speed changes, and at least so often.
PROGRESS_EVERY_S = 60.0
# Samples that count as one step, a usual batch.
STEP_SAMPLES = 256

NETWORKS = tuple(
    replace(spec, up_cost_s=measured.UP_STALL_S, down_cost_s=measured.DOWN_STALL_S) for spec in representative()
)
# Progress that was told is never taken back, so no trainer ever owes samples.
_TERMS = Terms(warm_up_s=measured.WARM_UP_S, debt=False, prefix=PREFIX)


def in_order(trainers: Mapping[str, Trainer]) -> dict[str, Trainer]:
    """Imaginary trainers as they arrived: those that came in the same instant by their number."""
    return {id_: trainers[id_] for id_ in sorted(trainers, key=_number)}


class ImaginaryTrainers:
    """The active imaginary trainers and their drivers; `earned` counts all their samples, charges taken off."""

    def __init__(self, state: State, now_s: float) -> None:
        """Go on with the trainers and leases of `state`, those of the ledger."""
        self.earned = 0.0
        self.drivers = Drivers(_TERMS, self)
        self._told: dict[str, tuple[float, float]] = {}
        self._last = max(map(_number, state.trainers), default=0)
        for trainer in state.trainers.values():
            if trainer.active:
                self._resume(trainer, state.leases.values(), now_s)

    @property
    def ids(self) -> Iterable[str]:
        """Those that are active, in order of arrival."""
        return self.drivers.in_play.keys()

    @property
    def rate(self) -> float:
        """Samples/s of all together."""
        return self.drivers.rate

    def take_off(self, time_s: float, charge: Charge, samples: float) -> None:
        """Samples were lost; to what and when is not told apart."""
        self.earned -= samples

    def stand_still(self, time_s: float, node_s: float) -> None:
        """Not told: shadow mode has no node-seconds of trainers."""

    def advance(self, now_s: float, counts: bool) -> None:
        """Let all work until `now_s`; time in which nobody looked does not count."""
        for driver in self.drivers.in_play.values():
            before = driver.samples
            if counts:
                driver.advance(now_s)
            driver.since_s = now_s
            self.earned += driver.samples - before

    def move(self, by_s: float) -> None:
        """Let all times be `by_s` later: the clock was set."""
        self._told = {id_: (rate, told_s + by_s) for id_, (rate, told_s) in self._told.items()}
        for driver in self.drivers.in_play.values():
            driver.move(by_s)

    def told(self, now_s: float, leases: Iterable[Lease], wanted: int) -> list[Event]:
        """What their drivers report at `now_s`: who is done and who comes, which nodes are warm, and the progress.

        Nothing is said of those of `leases` that were revoked since the drivers last obeyed. `wanted` is how many
        trainers there are to be.
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
        """Place what was lent and leave what was revoked; returns what the drivers report on it."""
        in_play = self.drivers.in_play
        before = {id_: driver.training for id_, driver in in_play.items()}
        reports = self.drivers.obey(leases, now_s)
        self.drivers.resize(now_s)
        events: list[Event] = []
        for id_, told in reports.items():
            resized = _resized(before[id_], in_play[id_].training, now_s) if id_ in in_play else []
            events.append(Reported(now_s, id_, (*told, *resized)))
        return events

    def _finished(self, driver: SimulatedDriver, now_s: float) -> list[Event]:
        ended = self.drivers.finish(driver, now_s)
        self._told.pop(driver.id, None)
        return [Reported(now_s, driver.id, (_progressed(driver, now_s),)), *ended]

    def _progress(self, driver: SimulatedDriver, now_s: float) -> list[Report]:
        rate, told_s = self._told.get(driver.id, (0.0, now_s))
        if rate == driver.rate and (rate == 0.0 or now_s - told_s < PROGRESS_EVERY_S):
            return []
        self._told[driver.id] = (driver.rate, now_s)
        progress = _progressed(driver, now_s)
        return [progress] if driver.rate > 0 else [progress, SuspendReport(now_s, progress.step)]

    def _next(self, now_s: float) -> Registered:
        self._last += 1
        spec = _spec(self._last)
        id_ = f"{PREFIX}{self._last}"
        self.drivers.add(id_, spec, now_s)
        name = f"{spec.kind}-{self._last}"
        # each is a user of its own: together they are none who could be at a cap
        request = registration(spec, spec.curve, measured.WARM_UP_S, id_=id_, name=name, user=id_)
        return Registered(now_s, request)

    def _resume(self, trainer: Trainer, leases: Iterable[Lease], now_s: float) -> None:
        driver = self.drivers.add(trainer.id, _spec(_number(trainer.id)), trainer.arrived_s)
        driver.samples, driver.since_s = trainer.samples, now_s
        for lease in leases:
            if lease.trainer == trainer.id and lease.job_id is not None:
                self.drivers.hold(driver, lease)
                if lease.phase != "working":
                    driver.warming[lease.node] = (lease.placed_s or now_s) + measured.WARM_UP_S
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
    """The resize of a trainer that goes on, as its driver tells it; a start or a suspension is none.

    It tells no stall: what is known of that is what the trainer reckons with.
    """
    if not before or not after or before == after:
        return []
    return [ResizeReport(now_s, before, after, "up" if after > before else "down")]


def _number(id_: str) -> int:
    return int(id_.removeprefix(PREFIX))


def _spec(number: int) -> SimTrainer:
    """The trainer that comes as the `number`-th, counted from 1."""
    return NETWORKS[(number - 1) % len(TABLE_2)]
