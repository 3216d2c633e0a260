"""`bft size curve --matrices`: the search of `bft size cpu`, replayed on a recorded matrix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bftd.base.errors import UsageError
from bftd.cli import common

if TYPE_CHECKING:
    from sizing.cpu.sensitivity.matrix import Matrix


def show(path: str | None, model: str | None, as_json: bool, *, others: bool) -> None:
    """Print the result of the search on the model's matrix and that of trying every point.

    Raises UsageError if `path` or `model` is missing, or if there are `others`, that is further options.
    """
    if path is None or model is None or others:
        raise UsageError("a recorded matrix is searched with --matrices FILE --model NAME, and nothing else but --json")
    from sizing.cpu import matrices_file

    recorded = matrices_file.one(matrices_file.load(Path(path)), model)
    summary, tried = played(recorded.matrix)
    if as_json:
        common.echo_json(summary)
        return
    points = ", ".join(f"{rate:.3g} with {cpus:g}" for cpus, rate in tried.items())
    common.echo(
        [
            f"{recorded.name}, for each of its GPUs ({recorded.matrix.gpus})",
            f"  search      CPUs {summary['cpus']:g}, memory {summary['memory_gb']:g} GB",
            f"  full sweep  CPUs {summary['full_sweep_cpus']:g}, memory {summary['full_sweep_memory_gb']:g} GB",
            f"  throughput by CPUs, {summary['points_tried']} of {len(recorded.matrix.cpus)} tried: {points}",
        ]
    )


def played(matrix: Matrix) -> tuple[dict[str, float], dict[float, float]]:
    """Return the numbers of the JSON, and the points tried, in order, with their rates."""
    from sizing.cpu.matrices_file import GB
    from sizing.cpu.sensitivity import search

    rates = dict(zip(matrix.cpus, map(max, matrix.rates), strict=True))
    found = search.search(matrix.cpus, rates.__getitem__)
    at, full = (replace(matrix, searched=cpus).demand() for cpus in (found.demand, None))
    summary = {
        "cpus": at.cpus,
        "memory_gb": at.memory_bytes / GB,
        "points_tried": len(found.tried),
        "full_sweep_cpus": full.cpus,
        "full_sweep_memory_gb": full.memory_bytes / GB,
    }
    return summary, dict(found.tried)
