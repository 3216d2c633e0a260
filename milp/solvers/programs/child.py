"""The process that solves programs for another: whatever an engine does in here, it can be killed.

Requests come on standard input, answers go to standard output, each a pickle behind its length. It ends with its
parent, or when standard input does.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO

from milp.errors import MilpError, UnsupportedError
from milp.maps import keep
from milp.solvers.programs import counts, gurobi, highs, nodes
from milp.solvers.programs.lifeline import die_with_parent
from milp.solvers.programs.linear import Solution
from milp.solvers.programs.messages import HEADER, Answer, Request, write


def answer(request: Request, out: BinaryIO) -> Answer:
    """Build and solve; better maps are written to `out` as they are found."""
    problem, limits = request.problem, request.limits
    engine = {"highs": highs, "gurobi": gurobi}[request.engine]
    sos2 = request.engine == "gurobi"
    model: counts.CountModel | nodes.NodeModel
    if request.model == "counts":
        model = counts.build(problem, sos2=sos2)
    else:
        model = nodes.build(problem, sos2=sos2, paper_big_m=limits.paper_big_m)
    start = model.point(keep(problem))
    # What rounding or the paper's big-M forbids is no start.
    start_or_none = None if model.linear.violated(start) else start

    def report(x: Sequence[float] | None, bound: float) -> None:
        write(out, Answer(None if x is None else model.assignment(x), bound))

    solution: Solution = engine.optimise(model.linear, limits, start_or_none, report)
    if solution.infeasible:
        return Answer(final=True, error="no map is allowed: with the paper's big-M none may exist, solve without it")
    found = None if solution.x is None else model.assignment(solution.x)
    bound = float("inf") if solution.bound is None else solution.bound
    return Answer(found, bound, final=True)


def main() -> None:
    """Answer requests until there are no more."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then kills this process
    # Engines print where they like: only answers may go where the parent reads.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while header := sys.stdin.buffer.read(HEADER.size):
        request = pickle.loads(sys.stdin.buffer.read(HEADER.unpack(header)[0]))
        try:
            last = answer(request, out)
        except MilpError as error:
            last = Answer(final=True, error=str(error), refused=isinstance(error, UnsupportedError))
        except Exception as error:
            last = Answer(final=True, error=f"{type(error).__name__}: {error}")
        write(out, replace(last, final=True))


if __name__ == "__main__":
    main()
