"""What a service tells whoever measures it, where it happens: nothing here knows how it is counted, or shown.

Durations are seconds of a clock that nobody sets. The methods are called from any thread, return at once and never
raise.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bftd.core.domain import Action, State
from bftd.core.events import Event
from bftd.core.planning import Solve
from bftd.service.windows import Window
from milp import Plan, Problem


class Meters:
    """Measures nothing: what a service has that nobody watches."""

    def stepped(
        self, before: State, after: State, events: Sequence[Event], actions: Sequence[Action], took_s: float
    ) -> None:
        """The core took events in, within `took_s`; `actions` are all that followed, whether written down or not."""

    def solved(self, solver: str, status: str, took_s: float) -> None:
        """An allocation problem was solved; `status` is that of the plan, or "failed"."""

    def distrusted(self, engine: str) -> None:
        """An engine said of a solution that it is worth what it is not, and was not believed."""

    def snapshot(self, read_s: float, taken_in_s: float | None) -> None:
        """Slurm was read for `read_s`, and what was read taken in; None where there was no good snapshot."""

    def slurm_called(self, command: str, outcome: str, took_s: float) -> None:
        """A command of Slurm's ended; `outcome` is one of `slurm_plugin.client.OUTCOMES`."""

    def answered(self, method: str, route: str, status: int) -> None:
        """A request was answered; `route` is the path as the table of routes has it, "" where there is none."""


NO_METERS = Meters()


@dataclass(frozen=True, slots=True)
class Figures:
    """A service at one moment, for whoever shows it: all immutable, so that it may be read in any thread.

    `now_s` is the wall time, `ledger` is what `Ledger.size` shows, `failure` why it cannot be written, "" where it can,
    `plugin_fault` why this host's Slurm does not load the SPANK plug-in.
    """

    state: State
    now_s: float
    mode: str
    ledger: Mapping[str, Any]
    failure: str
    written_bytes: int
    windows: Sequence[Window]
    plugin_fault: str = ""


def metered(solve: Solve, meters: Meters) -> Solve:
    """The solver, with every call of it told."""

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
