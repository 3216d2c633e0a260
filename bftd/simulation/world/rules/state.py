"""The rules for the daemon's state, and for the way from each of its states to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import astuple
from operator import attrgetter

from bftd.core.invariants import InvalidState, validate_state
from bftd.core.model.domain import Lease, State
from bftd.protocol import comment
from slurm_plugin.read.types import Snapshot

_SLACK_S = 2.0
"""A snapshot and what is made of it are that far apart."""

_COUNTERS = attrgetter("step", "samples", "steps_lost", "resizes", "suspends", "epoch", "probes")


class StateRules:
    """Looks at each state once. `granted` has every lease ever granted, by id."""

    def __init__(self) -> None:
        self.granted: dict[str, Lease] = {}
        self._last: State | None = None
        self._is_ahead = False

    def died_writing(self) -> None:
        """Note that the daemon was killed as it wrote its ledger, which may be a step ahead of its last state."""
        self._is_ahead = True

    def forget(self) -> None:
        """Forget the last state: the next one may be an earlier one."""
        self._last = None

    def broken(
        self, state: State, seen: Snapshot | None, blind_s: float, *, anew: bool, is_sound: bool = True
    ) -> Iterator[str]:
        """Yield the rules that do not hold.

        `seen` is the daemon's last look at Slurm, which could not be asked for `blind_s` seconds; `anew`: the daemon
        was started again since the last state, `is_sound`: no disk, clock or lost answer has hindered it for a while.
        """
        before, self._last = self._last, state
        try:
            validate_state(state)
        except InvalidState as error:
            yield str(error)
        if before is not None:
            yield from _monotone(before, state)
            yield from _unsolved(before, state)
            if anew or not state.pool.seen:
                yield from _forgotten(before, state, anew, anew and self._is_ahead)
            self._is_ahead = self._is_ahead and not anew
        if before is None or state.leases is not before.leases:
            known = before.leases if before is not None else self.granted
            for id_, lease in state.leases.items():
                if id_ not in known:
                    yield from self._grant(state, lease, seen, blind_s)
        if state.pool.seen and (before is None or state.pool.time_s != before.pool.time_s):
            if is_sound:
                yield from _overdue(state)
            yield from _alarms(state, seen)

    def _grant(self, state: State, lease: Lease, seen: Snapshot | None, blind_s: float) -> Iterator[str]:
        if lease.id in self.granted:
            yield f"S4: lease {lease.id} is granted to {lease.trainer} again"
        self.granted[lease.id] = lease
        pool, settings = state.pool, state.settings
        if pool.hold is not None or state.time_s - pool.time_s > settings.pool.stale_after_s:
            yield f"S9: lease {lease.id} is granted although nothing may grow"
        if blind_s > settings.pool.stale_after_s + _SLACK_S:
            yield f"S9: lease {lease.id} is granted {blind_s:.0f} s after Slurm last answered"
        for earmark in pool.earmarks.values():
            if lease.node in earmark.nodes:
                yield f"S1b: lease {lease.id} is granted on a node with an earmark of job {earmark.job}"
        node = pool.nodes.get(lease.node)
        if node is None or not node.in_pool:
            yield f"S5: lease {lease.id} is granted on a node that is not in the pool"
        if lease.limit_s > settings.pool.pilot_limit_s:
            yield f"S1: the pilot of lease {lease.id} may last {lease.limit_s:g} s"
        if seen is not None and seen.time_s == pool.time_s:
            yield from _window(state, lease, seen)


def _window(state: State, lease: Lease, seen: Snapshot) -> Iterator[str]:
    settings, window_s = state.settings.pool, float("inf")
    for job in seen.jobs:
        if job.state == "PENDING" and lease.node in job.sched_nodes and job.start_s is not None:
            window_s = min(window_s, job.start_s - seen.time_s)
        elif job.state == "RUNNING" and lease.node in job.nodes and comment.parse(job.comment) is None:
            yield f"S9: lease {lease.id} is granted on the node of job {job.id}"
    if window_s < settings.min_window_s - _SLACK_S:
        yield f"S1: lease {lease.id} is granted {window_s:.0f} s before a job is planned there"
    if lease.limit_s > max(60.0, window_s + _SLACK_S):
        yield f"S1: the pilot of lease {lease.id} may last {lease.limit_s:g} s, a job is planned in {window_s:.0f} s"


def _monotone(before: State, state: State) -> Iterator[str]:
    for id_, trainer in before.trainers.items():
        now = state.trainers.get(id_)
        if now is None or now is trainer:
            continue
        for name, old, new in zip(
            ("step", "samples", "steps_lost", "resizes", "suspends", "epoch", "probes"),
            _COUNTERS(trainer),
            _COUNTERS(now),
            strict=True,
        ):
            if new < old:
                yield f"S10: {name} of trainer {id_} goes back from {old:g} to {new:g}"
    if state.usage is not before.usage and any(
        new < old for old, new in zip(astuple(before.usage), astuple(state.usage), strict=True)
    ):
        yield f"S10: node-seconds go back from {before.usage} to {state.usage}"
    if state.sequence < before.sequence:
        yield f"S4: the numbers of leases go back from {before.sequence} to {state.sequence}"


def _unsolved(before: State, state: State) -> Iterator[str]:
    """A trainer keeps as many of the nodes that it trains on as it may, if no solver has made a plan."""
    planned, failed = state.planned, state.failed_solvers.values()
    if planned is before.planned or not any(not one.instead and one.until_s == planned.time_s for one in failed):
        return
    earmarked = {node for earmark in state.pool.earmarks.values() for node in earmark.nodes}
    free = {name for name, node in state.pool.nodes.items() if node.in_pool} - earmarked
    for id_, nodes in planned.assignment.items():
        of_it = [one for one in before.leases.values() if one.live and one.trainer == id_ and one.node in free]
        there = [(one, state.leases.get(one.id)) for one in of_it if one.working_s is not None]
        held = [one for one, now in there if now is not None and now.leaving_s is None]
        if len(nodes) < state.trainers[id_].sizes.largest(len(held)):
            yield f"L2: the solver fails, and trainer {id_} keeps {len(nodes)} of its {len(held)} nodes"


def _forgotten(before: State, state: State, anew: bool, ahead: bool) -> Iterator[str]:
    """A daemon that was killed and started again has lost nothing, and takes nothing back before it sees the cluster.

    A driver may have Slurm's notice, or its end, to tell meanwhile, and a ledger that is `ahead` may tell of that, too.
    """
    for id_, lease in before.leases.items():
        if id_ not in state.leases:
            if anew and (lease.live or not ahead):
                yield f"S3: a restarted daemon knows nothing of lease {id_}"
            continue
        now = state.leases[id_]
        is_told = not anew and (now.vacate or not state.trainers[lease.trainer].active)
        if lease.live and not now.live and not is_told and not ahead:
            yield f"S3: a restarted daemon has revoked lease {id_} before it saw the cluster"
    if missing := before.trainers.keys() - state.trainers.keys():
        yield f"S3: a restarted daemon knows nothing of trainer {min(missing)}"


def _overdue(state: State) -> Iterator[str]:
    """An alarm is told when a node is not given back in time, and only then."""
    bound_s = state.settings.pool.give_back_bound_s
    for lease in state.leases.values():
        if lease.live or lease.asked_back_s is None:
            continue
        overdue_s = state.time_s - lease.asked_back_s
        there = lease.observed or (lease.job_id is not None and lease.placed_s is not None)
        if there and overdue_s > bound_s and not lease.alarmed:
            yield f"alarms: nobody is told that {lease.node} was asked back {overdue_s:.1f} s ago"
        if lease.alarmed and overdue_s <= bound_s:
            yield f"alarms: {lease.node} was asked back only {overdue_s:.1f} s ago"


def _alarms(state: State, seen: Snapshot | None) -> Iterator[str]:
    """The alarm of another daemon needs a pilot that names one, that of operator mode needs such a mode."""
    if "operator" in state.alarms and not state.settings.slurm.operator:
        yield "alarms: operator mode is off"
    if "daemon" in state.alarms and seen is not None:
        named = {comment.daemon_of(job.comment) for job in seen.jobs} - state.settings.identities - {""}
        if not named and seen.time_s == state.pool.time_s and state.pool.hold is not None:
            yield "alarms: no pilot of another daemon runs"


def failures_of(state: State, guilty: Collection[str]) -> Iterator[str]:
    """Yield the nodes that are blamed for what did not happen there; `guilty` are the leases with a failure."""
    for node, failures in state.failures.items():
        for failure in failures:
            if failure.pilot not in guilty:
                yield f"blame: {node} is told to have failed in {failure.pilot}, and nothing had failed there"
