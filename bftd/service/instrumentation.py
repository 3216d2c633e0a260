"""The interface through which a service reports events to a meter; nothing here knows how they are counted or shown.

Durations are seconds of a clock that nobody sets. The methods are called from any thread, return at once and never
raise.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bftd.core.model.domain import Action, State
from bftd.core.model.events import Event
from bftd.core.planning.planning import Solve
from bftd.ledger.rolling import RollingPeriod
from milp import Plan, Problem


class Meters:
    """A meter that measures nothing, for a service that nobody watches."""

    def stepped(
        self, before: State, after: State, events: Sequence[Event], actions: Sequence[Action], took_s: float
    ) -> None:
        """The core took in events, within `took_s`; `actions` are all that followed, written to the ledger or not."""

    def solved(self, solver: str, status: str, took_s: float) -> None:
        """An allocation problem was solved; `status` is that of the plan, or "failed"."""

    def distrusted(self, engine: str) -> None:
        """An engine reported a wrong value for its solution, which was rejected."""

    def snapshot(self, read_s: float, taken_in_s: float | None) -> None:
        """Slurm was read for `read_s` and the snapshot taken in for `taken_in_s`, None if no good snapshot came."""

    def slurm_called(self, command: str, outcome: str, took_s: float) -> None:
        """A Slurm command ended; `outcome` is one of `slurm_plugin.clients.client.OUTCOMES`."""

    def answered(self, method: str, route: str, status: int) -> None:
        """A request was answered; `route` is the path in the table of routes, "" if there is none."""


NO_METERS = Meters()


@dataclass(frozen=True, slots=True)
class Figures:
    """A service at one moment: all fields are immutable, so that any thread may read them.

    `now_s` is the wall time, `ledger` the result of `Ledger.size`, `failure` why the ledger cannot be written ("" if it
    can), and `plugin_fault` why this host's Slurm does not load the SPANK plug-in.
    """

    state: State
    now_s: float
    mode: str
    ledger: Mapping[str, Any]
    failure: str
    written_bytes: int
    windows: Sequence[RollingPeriod]
    plugin_fault: str = ""


def metered(solve: Solve, meters: Meters) -> Solve:
    """Return the solver, with each of its calls reported to `meters`."""

    def timed(problem: Problem, solver: str, **options: Any) -> Plan:
        begun_s = time.perf_counter()
        try:
            plan = solve(problem, solver, **options)
        except Exception:
            meters.solved(solver, "failed", time.perf_counter() - begun_s)
            raise
        meters.solved(plan.solver, plan.status, time.perf_counter() - begun_s)
        for engine in plan.distrusted:
            meters.distrusted(engine)
        return plan

    return timed
