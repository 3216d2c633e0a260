"""The solving process: what becomes of a plan, and of the process, when it is slow, hangs or is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from milp import Cap, Curve, Feature, MilpError, NodeSpec, Plan, Problem, TrainerSpec, prepare, solve, verify
from milp.assignments import keep
from milp.running import process
from milp.utility import objective_of
from tests.support.messages import pattern, says
from tests.support.waiting import STILL_S, until

pytestmark = pytest.mark.slow


def hard(trainers: int = 10, nodes: int = 300) -> Problem:
    """A problem on which the paper's model takes many seconds and improves several times."""
    rng = random.Random(1)
    names = [f"n{i}" for i in range(nodes)]
    specs = []
    for index in range(trainers):
        points = sorted(rng.sample(range(1, 80), 5))
        curve = Curve((0, *points), (0.0, *sorted(rng.uniform(1, 20) for _ in points)))
        current = tuple(names[index * 20 : index * 20 + rng.randint(0, 20)])
        specs.append(TrainerSpec(f"t{index}", 1, 64, rng.uniform(0, 40), rng.uniform(0, 10), curve, current))
    return Problem(tuple(map(NodeSpec, names)), tuple(specs), 120.0)


HARD = hard()
DOING_NOTHING = objective_of(HARD, keep(HARD))


@pytest.fixture(autouse=True)
def no_child_before_or_after() -> Iterator[None]:
    process._end_idle()
    yield
    process._end_idle()
    assert children() == []


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "milp.running.child" in child.cmdline()]


def is_no_worse_than_doing_nothing(plan: Plan) -> None:
    verify(HARD, plan)
    assert plan.objective >= DOING_NOTHING
    assert plan.bound >= solve(HARD, "exact").objective * (1 - 1e-9)
    if plan.status == "kept":
        assert plan.assignment == keep(HARD)
        assert all("no better plan" in reason for reason in plan.reasons.values())


@pytest.mark.parametrize("limit_s", [0.0, 0.05, 0.2, 0.35, 0.5, 1.0, 2.0])
def test_a_solver_out_of_time_at_any_moment_leaves_a_plan_no_worse_than_the_current_map(limit_s: float) -> None:
    plan = solve(HARD, "highs-nodes", time_limit_s=limit_s)
    is_no_worse_than_doing_nothing(plan)
    # It was stopped, not waited for; generous, for a machine that does other things too.
    assert plan.wall_s < limit_s + 10


@pytest.mark.parametrize("messages", [1, 2, 3])
def test_a_solver_killed_after_any_news_leaves_the_better_of_incumbent_and_current_map(messages, monkeypatch) -> None:
    heard = []

    def kill_after(best, incoming):
        latest = original(best, incoming)
        heard.append(latest)
        if len(heard) == messages:
            children()[0].send_signal(signal.SIGKILL)
        return latest

    original = process._latest
    monkeypatch.setattr(process, "_latest", kill_after)
    plan = solve(HARD, "highs-nodes", gap=0.0)
    is_no_worse_than_doing_nothing(plan)
    incumbent = heard[-1].assignment
    if incumbent is not None:
        assert plan.objective == pytest.approx(max(DOING_NOTHING, objective_of(HARD, incumbent)))


def test_a_solver_killed_before_it_says_anything_leaves_the_current_map(monkeypatch) -> None:
    started = process.Worker.__init__

    def start_and_kill(self, engine: str) -> None:
        started(self, engine)
        os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(process.Worker, "__init__", start_and_kill)
    plan = solve(HARD, "highs")
    assert plan.status == "kept"
    assert all(says(reason, "milp.process.died") for reason in plan.reasons.values())
    is_no_worse_than_doing_nothing(plan)


def test_a_solver_that_hangs_is_killed_at_the_limit_and_another_starts_for_the_next_time(monkeypatch) -> None:
    started = process.Worker.__init__
    pids: list[int] = []

    def start_and_stop(self, engine: str) -> None:
        started(self, engine)
        pids.append(self.pid)
        os.kill(self.pid, signal.SIGSTOP)

    monkeypatch.setattr(process.Worker, "__init__", start_and_stop)
    # More than a pipe holds: the request itself cannot be handed over whole.
    wide = hard(nodes=20_000)
    plan = solve(wide, "highs", time_limit_s=0.3)
    assert plan.status == "kept"
    assert plan.assignment == keep(wide)
    assert [child.pid for child in children()] == pids[1:]


def test_a_child_is_used_again_and_replaced_when_it_died_meanwhile(trainer, problem) -> None:
    small = problem(4, trainer())
    solve(small, "highs")
    first = [child.pid for child in children()]
    solve(small, "highs-nodes")
    assert [child.pid for child in children()] == first
    os.kill(first[0], signal.SIGKILL)
    assert solve(small, "highs").status == "optimal"
    assert first != [child.pid for child in children()]


def test_a_process_that_was_started_ahead_is_used_and_no_second_one_is(trainer, problem) -> None:
    prepare("exact")
    assert children() == []
    prepare("highs-nodes")
    prepare("highs")
    first = [child.pid for child in children()]
    assert len(first) == 1
    assert solve(problem(4, trainer()), "highs").status == "optimal"
    assert [child.pid for child in children()] == first


def test_for_auto_a_process_is_started_ahead_only_where_a_program_will_be_asked_for(trainer, problem) -> None:
    prepare("auto")
    prepare("auto", frozenset({Feature.CAPS}))
    assert children() == []
    prepare("auto", frozenset({Feature.CROSSING_CAPS}))
    first = [child.pid for child in children()]
    assert len(first) == 1
    specs = [trainer(name, user=user, account=account) for name, user, account in ("aux", "buy", "cvx")]
    crossing = replace(problem(4, *specs), caps=(Cap(3, user="u"), Cap(3, account="x")))
    assert solve(crossing, "auto").status == "optimal"
    assert [child.pid for child in children()] == first


def test_a_child_that_died_unnoticed_leaves_the_current_map_and_the_next_solve_is_well(trainer, problem) -> None:
    small = problem(4, trainer())
    solve(small, "highs")
    children()[0].send_signal(signal.SIGSTOP)
    assert solve(small, "highs", time_limit_s=0.1).status == "kept"
    assert solve(small, "highs").status == "optimal"


def test_two_threads_solve_at_the_same_time(trainer, problem) -> None:
    plans: list[Plan] = []
    threads = [
        threading.Thread(target=lambda count=count: plans.append(solve(problem(count, trainer()), "highs")))
        for count in (3, 4, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(plan.counts["a"] for plan in plans) == [3, 4, 5]


def test_no_map_at_all_under_the_papers_big_m_is_an_error_that_says_so(trainer, problem) -> None:
    # 30 of 40 nodes held and only 2 allowed: with M = 41 no more than 20 can be given up at once.
    nodes = tuple(f"n{i}" for i in range(30))
    stuck = problem(40, trainer(nodes_max=2, current=nodes))
    with pytest.raises(MilpError, match=pattern("milp.child.no_map")):
        solve(stuck, "paper-nodes")
    assert solve(stuck, "highs-nodes").counts == {"a": 2}


SOLVE_AND_LEAVE = """
import os, sys, threading
from tests.milp.running.test_process import HARD, children
from milp import Curve, NodeSpec, Problem, TrainerSpec, solve
small = TrainerSpec("a", 1, 1, 0.0, 0.0, Curve((0, 1), (0.0, 1.0)))
solve(Problem((NodeSpec("n0"),), (small,), 1.0), "highs")  # the child is there and has started
threading.Thread(target=solve, args=(HARD, sys.argv[1]), kwargs={"gap": 0.0}, daemon=True).start()
if sys.argv[2] == "idle":
    threading.enumerate()[-1].join()
print(children()[0].pid, flush=True)
if sys.argv[2] == "killed":
    children()[0].suspend()  # it can do nothing itself about being alone
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("solver", "how"), [("highs", "idle"), ("highs-nodes", "killed")])
def test_the_child_ends_with_its_parent_however_that_ends(solver: str, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SOLVE_AND_LEAVE, solver, how],
        capture_output=True,
        text=True,
        timeout=STILL_S,
        check=False,
    )
    pid = int(done.stdout)
    until(
        "the child ends",
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE,
        shown=lambda: done.stderr,
    )
