"""Output of `bft size cpu`: the sensitivity matrix, a plot of its CPU axis, the demand and the lines."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from bftd.base.format import size
from bftd.cli import common
from bftd.cli.progress import progress_bar
from bftd.protocol.fields import printable
from sizing.cpu.words import cpus_in_words

if TYPE_CHECKING:
    from sizing.cpu.profiler import ProfileCost
    from sizing.cpu.runs.measurement import PointProgress, PointResult
    from sizing.sbatch.cpu import CpuNeed, NodeResources
    from sizing.sbatch.lines import SbatchLine

_PLOT_WIDTH = 80  # for a file or a pipe
_BAR_LEAST, _BAR_MOST = 8, 50
_ROWS = 16
_HINTED_S, _NOTED_S = 3.0, 15.0  # until a note that no step is seen: with an expression that would, and without
_PRINTED_MOST = 80
_UNSURE = 0.2  # relative width of a rate's interval: one so wide hides twice the difference that the search looks for
_MARK = "  <- demand"


@contextmanager
def progress(cost: ProfileCost) -> Iterator[tuple[Callable[[PointProgress, int], None], Callable[[str], None]]]:
    """Show a bar if standard error is a terminal.

    Yields two functions: one draws the bar, given the state of a run and the number of runs done; the other prints a
    line above it.
    """
    noted = False

    with progress_bar("", lines=True) as bar:

        def tell(at: PointProgress, done: int) -> None:
            nonlocal noted
            if not noted and at.printed and at.elapsed_s >= (_HINTED_S if at.expression else _NOTED_S):
                noted = True
                click.echo(printable(unseen(at)), err=True)
            rate = "" if at.rate is None else f", {at.rate:.4g}/s"
            part = min(0.95, at.elapsed_s / max(1.0, cost.point_s))
            bar((done + part) / max(cost.points, done + 1), f"{cpus_in_words(at.cpus)}: {at.phase}{rate}")

        yield tell, lambda line: click.echo(printable(line), err=True)


def unseen(at: PointProgress) -> str:
    """Say that no step was seen so far, what was printed instead, and what would find a step in it."""
    expression = shlex.quote(at.expression or "step (?P<step>[0-9]+)")
    do = f"if that tells its steps, stop this and add --regex {expression}" + ("" if at.expression else " or the like")
    return f"note: no step seen in {at.elapsed_s:.0f} s; it prints {at.printed[:_PRINTED_MOST]!r}: {do}"


def point(result: PointResult, since_s: float) -> str:
    """Format a run's result; one made before `since_s` (unix seconds) is from the cache."""
    rate = result.rate
    old = ", from the cache" if result.made_s < since_s else ""
    return (
        f"{cpus_in_words(result.cpus)}: {rate.value:.4g} {result.unit} "
        f"({rate.low:.4g} to {rate.high:.4g}; {result.steps} steps in {result.steady_s:.0f} s{old})"
    )


def lines(need: CpuNeed, node: NodeResources | None, notes: Sequence[str]) -> Iterator[str]:
    """Yield all output in reading order: the findings first, the lines to use last."""
    from sizing.sbatch import lines as emit

    yield from plot(need, common.terminal_width() or _PLOT_WIDTH)
    if need.modelled:
        yield ""
        yield from matrix(need) if need.memory_matters else [_no_cache(need)]
    yield ""
    yield demand(need)
    for note in (*need.remarks(node), *notes):
        yield f"note: {note}"
    yield ""
    written = need.lines()
    yield from emit.commented(tuple(line.text for line in written), tuple(line.why for line in written))


def plot(need: CpuNeed, width: int) -> Iterator[str]:
    """Yield a bar for each number of CPUs, with all the memory, in at most `width` columns."""
    yield f"{need.unit} by CPUs" + (" for each GPU" if need.gpus else "")
    table = need.matrix
    rows = _rows(need)
    numbers = [f"{table.cpus[at]:g}" for at in rows]
    rates = [f"{table.rates[at][-1]:.4g}" for at in rows]
    origins = [_origin(need, at) for at in rows]
    wide = sum(max(map(len, column)) + 2 for column in (numbers, rates, origins))
    if width < wide + len(_MARK) + _BAR_LEAST:  # on narrow terminals the origins are dropped before the bars
        origins = [""] * len(rows)
        wide -= max(len(_origin(need, at)) for at in rows)
    width_most = min(_BAR_MOST, max(_BAR_LEAST, width - wide - len(_MARK)))
    for at, cpus, rate, origin in zip(rows, numbers, rates, origins, strict=True):
        bar = "#" * round(width_most * table.rates[at][-1] / table.best)
        mark = _MARK if table.cpus[at] == need.demand.cpus else ""
        begins = f"{cpus:>{max(map(len, numbers))}}  {rate:>{max(map(len, rates))}}  {origin:<{max(map(len, origins))}}"
        yield f"{begins}  {bar}{mark}".rstrip()


def matrix(need: CpuNeed) -> Iterator[str]:
    """Yield the sensitivity matrix as a table of CPUs (rows) by memory (columns); a star marks the demand."""
    from bftd.base.tables import Column

    table, wanted = need.matrix, need.demand
    row_at, at = table.cpus.index(wanted.cpus), table.memory_bytes.index(wanted.memory_bytes)
    # on narrow terminals the columns far from the demand are dropped first
    columns = [Column("CPUS", right=True)] + [
        Column(size(memory_bytes), rank=abs(index - at), right=True)
        for index, memory_bytes in enumerate(table.memory_bytes)
    ]
    rows = [
        (
            f"{table.cpus[row]:g}",
            *(f"{rate:.4g}{'*' if (row, j) == (row_at, at) else ' '}" for j, rate in enumerate(table.rates[row])),
        )
        for row in _rows(need)
    ]
    a_gpu = " for each GPU" if need.gpus else ""
    yield f"{need.unit} by CPUs and memory{a_gpu}; * is the least that is as good as the best"
    yield from common.table(columns, rows)


def _no_cache(need: CpuNeed) -> str:
    least = size(need.matrix.memory_bytes[0])
    each = " for each GPU" if need.gpus else ""
    return f"memory for a cache of the data is of no use: it is as fast with the {least} of its processes{each}"


def _rows(need: CpuNeed) -> list[int]:
    """Return the rows to show: all if few, else the measured ones, the demand with its neighbours, and both ends."""
    cpus = need.matrix.cpus
    wanted = cpus.index(need.demand.cpus)
    if len(cpus) <= _ROWS:
        return list(range(len(cpus)))
    measured = {at for at in range(len(cpus)) if _origin(need, at) == "measured"}
    near = set(range(max(0, wanted - 1), min(len(cpus), wanted + 2)))
    return sorted(measured | near | {0, len(cpus) - 1})


def _origin(need: CpuNeed, row: int) -> str:
    return need.matrix.origins[row] if need.matrix.origins else "measured"


def demand(need: CpuNeed) -> str:
    """Return the demand vector as a sentence."""
    point = need.demand
    memory = f", {size(point.memory_bytes)}" if need.modelled else ""
    if need.gpus:
        gpus = "1 GPU with" if need.gpus == 1 else f"{need.gpus} GPUs, each with"
        return f"demand: {gpus} {cpus_in_words(point.cpus)}{memory}"
    return f"demand: {cpus_in_words(point.cpus)}{memory}"


def to_json(need: CpuNeed, node: NodeResources | None, notes: Sequence[str], more: dict[str, Any]) -> dict[str, Any]:
    """Return the output of --json: memory in bytes; CPUs and memory are per GPU, or in total without GPUs."""
    share = None if node is None else node.share
    point = need.demand
    return {
        "demand": {
            "gpus": need.gpus,
            "cpus": point.cpus,
            "memory_bytes": point.memory_bytes if need.modelled else None,
        },
        "sbatch": [_line(line) for line in need.lines()],
        "sensitive": need.sensitive,
        "gain": need.gain,
        "unit": need.unit,
        "matrix": {
            "cpus": list(need.matrix.cpus),
            "memory_bytes": list(need.matrix.memory_bytes) if need.modelled else None,
            "rates": [list(row) for row in need.matrix.rates],
            "origins": list(need.matrix.origins),
        },
        "process_bytes": need.process_bytes,
        "share": None if share is None else {"cpus": share.cpus, "memory_bytes": share.memory_bytes},
        "notes": [*need.remarks(node), *notes],
        **more,
    }


def _line(line: SbatchLine) -> dict[str, str]:
    return {"option": line.option, "value": line.value, "text": line.text, "why": line.why}
