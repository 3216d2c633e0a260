"""The process that solves programs for another: whatever an engine does in here, it can be killed.

Requests come on standard input, answers go to standard output, each a pickle after its length. The process ends with
its parent, or at the end of standard input.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import BinaryIO

from milp.assignments import keep
from milp.errors import MilpError, UnsupportedError
from milp.running.process import HEADER, News, SolveRequest, die_with_parent, write
from milp.solvers.programs.linear import optimise_checked
from milp.solvers.programs.programs import ENGINES, MODELS


def solved(request: SolveRequest, out: BinaryIO) -> News:
    """Build and solve the model; better maps are written to `out` as they are found."""
    engine = ENGINES[request.engine]
    model = MODELS[request.model](request.problem, sos2=engine.ordered_sets)
    start = model.point(keep(request.problem))
    # A point that rounding or the paper's big-M forbids cannot be a start.
    start_or_none = None if model.linear.violated(start) else start

    def report(x: Sequence[float] | None, bound: float) -> None:
        write(out, News(None if x is None else model.assignment(x), bound))

    solution = optimise_checked(
        engine,
        model.linear,
        start_or_none,
        report,
        gap=request.gap,
        time_limit_s=request.time_limit_s,
        clock=time.monotonic,
    )
    if solution.infeasible:
        return News(final=True, error="no map is allowed: with the paper's big-M none may exist, use another solver")
    found = None if solution.x is None else model.assignment(solution.x)
    bound = float("inf") if solution.bound is None else solution.bound
    return News(found, bound, final=True, distrusted=solution.distrusted)


def main() -> None:
    """Answer requests until there are no more."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then kills this process
    # Engines may print anywhere: only answers may reach the stream that the parent reads.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(ImportError):  # the request will report it
        import_module(ENGINES[sys.argv[2]].package)
    while header := sys.stdin.buffer.read(HEADER.size):
        request = pickle.loads(sys.stdin.buffer.read(HEADER.unpack(header)[0]))
        try:
            last = solved(request, out)
        except MilpError as error:
            last = News(final=True, error=str(error), refused=isinstance(error, UnsupportedError))
        except Exception as error:
            last = News(final=True, error=f"{type(error).__name__}: {error}")
        write(out, replace(last, final=True))


if __name__ == "__main__":
    main()
