"""Solvers that failed: their replacements, and for how long they are left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import milp
from bftd.core.model.timing import SOLVER_REST_S
from milp import Plan


@dataclass(frozen=True, slots=True)
class FailedSolver:
    """A solver's failure: its `error`, the solver used `instead` ("" if none works), and the time of the next try."""

    error: str
    until_s: float
    instead: str = ""

    @property
    def alarm(self) -> str:
        """The kind of its alarm: "no_plan" if no other solver works either."""
        return "solver" if self.instead else "no_plan"


Failed = Mapping[str, FailedSolver]


def resting(failed: Failed, now_s: float) -> Failed:
    """Return the failed solvers that are not to be tried again yet."""
    return {name: item for name, item in failed.items() if item.until_s > now_s}


def to_ask(name: str, failed: Failed) -> str:
    """Return the solver itself, or the first of its replacements that has not failed."""
    while name in failed:
        name = milp.solver_after(name)
    return name


def noted(failed: Failed, plan: Plan, now_s: float) -> Failed:
    """Return the failed solvers, including those that failed while `plan` was made."""
    until_s = now_s + SOLVER_REST_S
    failed = {**failed, **{name: FailedSolver(error, until_s) for name, error in plan.failed.items()}}
    return {name: replace(item, instead=plan.solver) for name, item in failed.items()}
