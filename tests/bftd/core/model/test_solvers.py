"""Solvers that fail: who solves in their place, for how long, and who is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import milp
from bftd.base import health
from bftd.core.inputs import clock_shift
from bftd.core.model.decisions import Keeps, SolverReplaced, Waits
from bftd.core.model.domain import Decided, Settings, SolverFailed
from bftd.core.model.events import Configured
from bftd.core.model.timing import SOLVER_REST_S
from bftd.service import admin_view
from milp import Plan, Problem
from tests.bftd.builders import Core, granted, registration

NO_LICENCE = "solver gurobi: no licence"


class Site:
    """A core whose solvers fail as `fails` says; it notes of every plan whom it asked, and whom not."""

    def __init__(self, solver: str, **fails: str) -> None:
        self.core = Core(Settings().changed(solver=solver))
        self.core.solve = self._solve
        self.fails: Mapping[str, str] = fails
        self.asked: list[tuple[str, frozenset[str]]] = []

    def _solve(self, problem: Problem, solver: str, *, fallback: bool, without: frozenset[str], **_: Any) -> Plan:
        assert fallback
        self.asked.append((solver, without))
        if "exact" in self.fails:
            raise milp.MilpError(self.fails["exact"])
        failed = {name: why for name, why in self.fails.items() if name not in without}
        return replace(milp.solve(problem, "exact", explain=False), failed=failed if solver != "auto" else {})

    def grows(self, nodes: int, after_s: float = 1.0) -> int:
        """How many nodes are granted when the pool has so many."""
        return len(granted(self.core.pool(*(f"n{i}" for i in range(nodes)), after_s=after_s)))

    @property
    def problems(self) -> list[tuple[str, str]]:
        alarms = admin_view.alarms(self.core.state, self.core.time_s)
        status = {"snapshot_age_s": 0.0, "alarms": alarms, "hold": None, "nodes": []}
        return [(problem.level, problem.kind) for problem in health.problems(status)]

    def said(self, kind: type) -> list[Any]:
        told = [action.decision for action in self.core.actions if isinstance(action, Decided)]
        return [decision for decision in told if isinstance(decision, kind)]


def test_L2_nodes_are_lent_all_the_same_and_the_alarm_names_who_solves() -> None:
    site = Site("gurobi", gurobi=NO_LICENCE)
    site.core.arrive(registration("1"))
    assert site.grows(4) == 4
    assert site.problems == [("WARNING", "solver")]
    failed = site.core.state.failed_solvers["gurobi"]
    assert (failed.error, failed.instead) == (NO_LICENCE, "exact")
    (told, *_) = site.said(SolverReplaced)
    assert (told.solver, told.instead, told.error) == ("gurobi", "exact", NO_LICENCE)
    assert not [action for action in site.core.actions if isinstance(action, SolverFailed)]


def test_a_solver_that_failed_is_left_alone_for_a_while_and_tried_again() -> None:
    site = Site("gurobi", gurobi=NO_LICENCE, highs="solver highs: not ready")
    site.core.arrive(registration("1"))
    site.grows(2)
    asked = len(site.asked)
    site.grows(3, after_s=SOLVER_REST_S / 2)
    assert set(site.asked[asked:]) == {("auto", frozenset({"gurobi", "highs"}))}
    assert site.problems == [("WARNING", "solver")]
    site.fails = {}
    asked = len(site.asked)
    site.grows(4, after_s=SOLVER_REST_S)
    assert set(site.asked[asked:]) == {("gurobi", frozenset())}
    assert site.problems == []
    assert site.core.state.failed_solvers == {}


def test_a_reload_and_bft_tune_try_it_at_once() -> None:
    site = Site("gurobi", gurobi=NO_LICENCE)
    site.core.arrive(registration("1"))
    site.grows(2)
    site.fails = {}
    site.core.apply(Configured(site.core.time_s, site.core.state.settings))
    assert site.asked[-1] == ("gurobi", frozenset())
    assert site.problems == []


def test_what_auto_has_tried_is_left_alone_and_no_alarm() -> None:
    site = Site("auto")
    site.core.solve = lambda problem, solver, **options: replace(
        milp.solve(problem, "exact", explain=False), failed={"gurobi": "too large"} if not options["without"] else {}
    )
    site.core.arrive(registration("1"))
    assert site.grows(2) == 2
    assert site.core.state.failed_solvers.keys() == {"gurobi"}
    assert (site.problems, site.said(SolverReplaced)) == ([], [])


def test_where_no_solver_answers_the_trainer_is_told_so_and_not_that_more_nodes_would_not_pay() -> None:
    site = Site("auto", exact="out of luck")
    site.core.arrive(registration("1"))
    assert site.grows(4) == 0
    assert site.problems == [("CRITICAL", "no_plan")]
    assert "out of luck" in site.said(Waits)[-1].why
    assert not site.said(Keeps)
    site.fails = {}
    site.core.apply(Configured(site.core.time_s, site.core.state.settings))
    assert site.problems == []


def test_how_long_it_is_left_alone_does_not_change_with_the_clock() -> None:
    site = Site("gurobi", gurobi=NO_LICENCE)
    site.core.arrive(registration("1"))
    site.grows(2)
    before = site.core.state.failed_solvers["gurobi"].until_s
    assert clock_shift.moved(site.core.state, 3600.0).failed_solvers["gurobi"].until_s == before + 3600.0
