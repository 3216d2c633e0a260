"""Solvers that failed: which one is asked in their place, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import milp
from bftd.core.timing import SOLVER_REST_S
from milp import Plan


@dataclass(frozen=True, slots=True)
class FailedSolver:
    """Why a solver failed, and which one solves `instead`, "" where none can; it is tried again at `until_s`."""

    error: str
    until_s: float
    instead: str = ""

    @property
    def alarm(self) -> str:
        """The kind of the alarm that it is: "no_plan" where no other solver solves either."""
        return "solver" if self.instead else "no_plan"


Failed = Mapping[str, FailedSolver]


def resting(failed: Failed, now_s: float) -> Failed:
    """Those that are not tried yet."""
    return {name: item for name, item in failed.items() if item.until_s > now_s}


def to_ask(name: str, failed: Failed) -> str:
    """The solver itself, or the first of those that take its place which has not failed."""
    while name in failed:
        name = milp.solver_after(name)
    return name


def noted(failed: Failed, plan: Plan, now_s: float) -> Failed:
    """What has failed by now, after a plan."""
    until_s = now_s + SOLVER_REST_S
    failed = {**failed, **{name: FailedSolver(error, until_s) for name, error in plan.failed.items()}}
    return {name: replace(item, instead=plan.solver) for name, item in failed.items()}
