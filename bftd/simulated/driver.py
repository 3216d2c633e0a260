"""The imaginary trainers: an endless list of the paper's networks, at work on what the core lends them.

They do what they are told at once: a pilot is placed when its node is lent, works `WARM_UP_S` later, and is gone when
it is revoked. Resizes cost what the project's Horovod back-end was measured to cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from bftd.core.domain import Event, Finished, Lease, Registered, Reported, State, Trainer
from bftd.pool.imagined import PREFIX, pilot_id
from bftd.protocol.lease import LeaseState
from bftd.protocol.reports import LeaseReport, ProgressReport, Report, ResizeReport, SuspendReport
from bftd.simulated import measured
from bftd.simulated.crew import Crew, registration
from bftd.simulated.networks import TABLE_2, representative
from bftd.simulated.trainers import SimTrainer

# A driver reports its progress when its speed changes, and at least so often.
PROGRESS_EVERY_S = 60.0
# Samples that count as one step, a usual batch.
STEP_SAMPLES = 256

NETWORKS = tuple(
    replace(spec, up_cost_s=measured.UP_STALL_S, down_cost_s=measured.DOWN_STALL_S) for spec in representative()
)


def in_order(trainers: Mapping[str, Trainer]) -> dict[str, Trainer]:
    """Imaginary trainers as they arrived: those that came in the same instant by their number."""
    return {id_: trainers[id_] for id_ in sorted(trainers, key=_number)}


class Crews:
    """The crews of the active imaginary trainers, in order of arrival; `earned` counts all their samples."""

    def __init__(self, state: State, now_s: float) -> None:
        """Go on with the trainers and leases of `state`, those of the ledger."""
        self.earned = 0.0
        self.crews: dict[str, Crew] = {}
        self._told: dict[str, tuple[float, float]] = {}
        self._last = max(map(_number, state.trainers), default=0)
        for trainer in state.trainers.values():
            if trainer.active:
                self.crews[trainer.id] = self._resumed(trainer, state.leases.values(), now_s)

    @property
    def rate(self) -> float:
        """Samples/s of all together."""
        return sum(crew.rate for crew in self.crews.values())

    def advance(self, now_s: float, counts: bool) -> None:
        """Let all work until `now_s`; time in which nobody looked does not count."""
        for crew in self.crews.values():
            before = crew.samples
            if counts:
                crew.advance(now_s)
            crew.since_s = now_s
            self.earned += crew.samples - before

    def told(self, now_s: float, leases: Iterable[Lease], wanted: int) -> list[Event]:
        """What their drivers report at `now_s`: who is done and who comes, which nodes are warm, and the progress.

        `wanted` is how many trainers there are to be.
        """
        held: dict[str, list[Lease]] = defaultdict(list)
        for lease in leases:
            held[lease.trainer].append(lease)
        events: list[Event] = []
        for id_, crew in list(self.crews.items()):
            if crew.done_s <= now_s:
                events += self._finished(id_, crew, held[id_], now_s)
                continue
            reports = self._warm(crew, now_s)
            reports += [
                _lease(lease, "working", now_s)
                for lease in held[id_]
                if lease.live and lease.phase == "placed" and lease.node not in crew.warming
            ]
            reports += self._progress(id_, crew, now_s)
            if reports:
                events.append(Reported(now_s, id_, tuple(reports)))
        while len(self.crews) < wanted:
            events.append(self._next(now_s))
        return events

    def obey(self, now_s: float, leases: Iterable[Lease]) -> list[Event]:
        """Place what was lent and leave what was revoked; returns what the drivers report on it."""
        reports: dict[str, list[Report]] = defaultdict(list)
        left: dict[str, list[str]] = defaultdict(list)
        for lease in leases:
            if not lease.live:
                left[lease.trainer].append(lease.node)
                reports[lease.trainer].append(_lease(lease, "ended", now_s))
            elif lease.job_id is None:
                crew = self.crews[lease.trainer]
                crew.held += 1
                crew.warming[lease.node] = now_s + measured.WARM_UP_S
                reports[lease.trainer].append(_lease(lease, "placed", now_s))
        for id_, nodes in left.items():
            reports[id_] += self._leave(id_, nodes, now_s)
        return [Reported(now_s, id_, tuple(told)) for id_, told in reports.items()]

    def _finished(self, id_: str, crew: Crew, held: Iterable[Lease], now_s: float) -> list[Event]:
        self.earned -= crew.overshoot
        crew.samples = crew.spec.work_samples
        del self.crews[id_]
        self._told.pop(id_, None)
        return [
            Reported(now_s, id_, (_progressed(crew, now_s),)),
            Finished(now_s, id_, exit_code=0, reason="its work is done"),
            Reported(now_s, id_, tuple(_lease(lease, "ended", now_s) for lease in held)),
        ]

    def _leave(self, id_: str, nodes: list[str], now_s: float) -> list[Report]:
        crew = self.crews.get(id_)
        if crew is None:
            return []
        before = crew.working
        crew.held -= len(nodes)
        for node in nodes:
            crew.warming.pop(node, None)
        if crew.working < before:
            self._stall(crew, crew.spec.down_cost_s)
        crew.pace()
        return _resized(before, crew.working, now_s)

    def _warm(self, crew: Crew, now_s: float) -> list[Report]:
        """Nodes that are warm take part; the others went on while they warmed up."""
        before = crew.working
        ready = [node for node, ready_s in crew.warming.items() if ready_s <= now_s]
        for node in ready:
            del crew.warming[node]
        if ready:
            self._stall(crew, crew.spec.up_cost_s)
            crew.pace()
        return _resized(before, crew.working, now_s)

    def _stall(self, crew: Crew, stall_s: float) -> None:
        """Stand still for `stall_s` at the present rate."""
        samples = min(crew.samples, crew.rate * stall_s)
        crew.samples -= samples
        self.earned -= samples

    def _progress(self, id_: str, crew: Crew, now_s: float) -> list[Report]:
        rate, told_s = self._told.get(id_, (0.0, now_s))
        if rate == crew.rate and (rate == 0.0 or now_s - told_s < PROGRESS_EVERY_S):
            return []
        self._told[id_] = (crew.rate, now_s)
        progress = _progressed(crew, now_s)
        return [progress] if crew.rate > 0 else [progress, SuspendReport(now_s, progress.step)]

    def _next(self, now_s: float) -> Registered:
        self._last += 1
        spec = _spec(self._last)
        id_ = f"{PREFIX}{self._last}"
        self.crews[id_] = Crew(spec, now_s)
        # each is a user of its own: together they are none who could be at a cap
        name = f"{spec.kind}-{self._last}"
        # each is a user of its own: together they are none who could be at a cap
        request = registration(spec, spec.curve, measured.WARM_UP_S, id_=id_, name=name, user=id_)
        return Registered(now_s, request)

    def _resumed(self, trainer: Trainer, leases: Iterable[Lease], now_s: float) -> Crew:
        crew = Crew(_spec(_number(trainer.id)), trainer.arrived_s)
        crew.samples, crew.since_s = trainer.samples, now_s
        mine = [lease for lease in leases if lease.trainer == trainer.id and lease.job_id is not None]
        crew.held = len(mine)
        crew.warming = {
            lease.node: (lease.placed_s or now_s) + measured.WARM_UP_S for lease in mine if lease.phase != "working"
        }
        crew.pace()
        return crew


def _progressed(crew: Crew, now_s: float) -> ProgressReport:
    return ProgressReport(
        at_s=now_s,
        step=int(crew.samples // STEP_SAMPLES),
        samples=crew.samples,
        samples_per_s=crew.rate,
        nodes=crew.working,
    )


def _resized(before: int, after: int, now_s: float) -> list[Report]:
    """The resize of a trainer that goes on, as its driver tells it; a start or a suspension is none.

    It tells no stall: what is known of that is what the crew reckons with.
    """
    if not before or not after or before == after:
        return []
    return [ResizeReport(now_s, before, after, "up" if after > before else "down")]


def _number(id_: str) -> int:
    return int(id_.removeprefix(PREFIX))


def _spec(number: int) -> SimTrainer:
    """The trainer that comes as the `number`-th, counted from 1."""
    return NETWORKS[(number - 1) % len(TABLE_2)]


def _lease(lease: Lease, state: LeaseState, now_s: float) -> LeaseReport:
    return LeaseReport(now_s, lease.id, state, job_id=pilot_id(lease))
