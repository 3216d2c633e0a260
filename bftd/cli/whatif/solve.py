"""`bft solve`: solves an allocation problem in a file, without a daemon or Slurm."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftd.base.errors import UsageError
from bftd.base.files import contents, decoded
from bftd.cli import common, options

if TYPE_CHECKING:
    from milp.problem import Plan, Problem
    from milp.solver import Solver

# Folding would take any other character in a name for an operator or a group: *, @, &, ...
_FOLDABLE = re.compile(r"[A-Za-z0-9._-]+")
# Every whole number with so many digits fits the 64 bits of the solvers' arrays.
_MOST_DIGITS = 18


class _SolveCommand(click.Command):
    """A command whose help lists the solvers; they are imported only for the help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from milp.solvers import registry

        best = "the first of these that is ready, carries the problem and proves its answer (the default)"
        with formatter.section("Solvers"):
            formatter.write_dl([("auto", best), *((solver.name, _described(solver)) for solver in registry.every())])


def _described(solver: Solver) -> str:
    from milp.solver import Feature

    extras = ", ".join(feature.value for feature in Feature if feature in solver.features)
    carries = f"also carries {extras}" if extras else "carries no extras"
    lack = solver.missing()
    return f"{solver.summary}; {carries}; {f'not ready: {lack}' if lack else 'ready'}"


@click.command(cls=_SolveCommand)
@click.argument("path", metavar="PROBLEM.json|-")
@click.option("--solver", default="auto", show_default=True, metavar="NAME", help="Which solver to use, see below.")
@click.option(
    "--time-limit",
    "time_limit_s",
    type=float,
    callback=options.above_zero,
    metavar="SECONDS",
    help="Stop a MILP solver after so long; then the best plan so far, or the current map, is the answer.",
)
@click.option(
    "--gap",
    type=float,
    default=1e-4,
    show_default=True,
    callback=options.not_negative,
    help="Relative gap at which a solver may stop.",
)
@options.as_json
def solve(path: str, solver: str, time_limit_s: float | None, gap: float, as_json: bool) -> None:
    """Solve the allocation problem in PROBLEM.json, or on standard input where that is "-"."""
    import milp

    problem = milp.problem_from_json(_read(path))
    plan = milp.solve(problem, solver, time_limit_s=time_limit_s, gap=gap)
    if as_json:
        common.echo_json(milp.plan_to_json(plan))
    else:
        click.echo("\n".join(_lines(problem, plan)))


def _read(path: str) -> Any:
    """Decode a JSON file; UsageError names the position of invalid JSON, or a duplicate field."""
    if path == "-":
        raw, where = sys.stdin.buffer.read(), "standard input"
    else:
        raw, where = contents(Path(path)), path
    data = decoded(raw, where, object_pairs_hook=_Object, parse_int=_whole)
    _refuse_repeated("the problem", data)
    return data


class _Object(dict[str, Any]):
    """A JSON object that remembers a duplicate field, which would silently replace the first."""

    def __init__(self, pairs: Collection[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated: str | None = None
        if len(self) < len(pairs):
            from milp.fields import first_repeated

            self.repeated = first_repeated(key for key, _ in pairs)


def _whole(digits: str) -> int | float:
    """Return a whole number; one too large for the solvers becomes a float, which is refused as a count."""
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def _refuse_repeated(where: str, value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            named = isinstance(item, dict) and isinstance(item.get("name"), str)
            _refuse_repeated(f"{where.removesuffix('s')} {item['name']}" if named else where, item)
    elif isinstance(value, _Object):
        if value.repeated is not None:
            raise UsageError(f"{where} has the field {value.repeated!r} twice: remove one")
        for key, item in value.items():
            _refuse_repeated(key if where == "the problem" else f"{where}: {key}", item)


def _lines(problem: Problem, plan: Plan) -> Iterable[str]:
    """Yield the plan: one line on the whole of it, then one per trainer."""
    took = f"{plan.wall_s:.2f} s" if plan.wall_s >= 1 else f"{plan.wall_s * 1000:.1f} ms"
    worth = f"objective {plan.objective:.6g}, bound {plan.bound:.6g}, gap {plan.gap:.2g}"
    yield f"{plan.status}: {worth}; solver {plan.solver}, {took}"
    rows = []
    for trainer in problem.trainers:
        now, then = len(trainer.current), plan.counts[trainer.name]
        change = str(then) if now == then else f"{now} -> {then}"
        rows.append((_plain(trainer.name), change, _folded(plan.assignment[trainer.name]), plan.reasons[trainer.name]))
    if problem.trainers:
        from bftd.base.tables import Column

        yield ""
        columns = [
            Column("TRAINER"),
            Column("NODES"),
            Column("ON", least=16, folds=True),
            Column("WHY", rank=1, least=24, folds=True),
        ]
        yield from common.table(columns, rows)


def _folded(nodes: Collection[str]) -> str:
    from slurm_plugin.nodeset import fold

    if all(_FOLDABLE.fullmatch(node) for node in nodes):
        return fold(nodes) or "-"
    return ",".join(map(_plain, nodes))


def _plain(text: str) -> str:
    """Escape characters that are not printable, such as line breaks, for a terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
