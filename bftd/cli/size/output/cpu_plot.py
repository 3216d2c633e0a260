"""The plot of `bft size cpu --plot`: speed by CPUs, with a line for each amount of memory, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bftd.base.errors import BftError, UsageError
from bftd.base.format import size
from bftd.cli import common

if TYPE_CHECKING:
    from sizing.cpu.profiler import Profile
    from sizing.sbatch.cpu import CpuNeed

_KINDS = (".svg", ".png")
_LINES_MOST = 5


def refuse(name: str, *, overwrite: bool) -> None:
    """Raise UsageError before minutes of work if the plot cannot be written, BftError without matplotlib."""
    path = Path(name)
    if path.suffix.lower() not in _KINDS:
        raise UsageError(f"--plot {name}: a file that ends in .svg or .png")
    common.refuse_unwritable(path)
    if path.exists() and not overwrite:
        raise UsageError(f"{path} is there already; give --overwrite, or another name to --plot")
    try:
        import matplotlib  # noqa: F401  an optional dependency, checked before the work
    except ImportError:
        raise BftError("--plot needs matplotlib: pip install 'bftd[plot]'; without it, bars are printed") from None


def write(need: CpuNeed, found: Profile, name: str) -> None:
    """Draw the plot and write the file atomically; raises UsageError if it cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes = figure.add_subplot()
    matrix, each = need.matrix, max(1, need.gpus)
    sizes = list(enumerate(matrix.memory_bytes))
    shown = sizes[:: max(1, -(-len(sizes) // _LINES_MOST))] if need.modelled and need.memory_matters else []
    if sizes[-1] not in shown:
        shown.append(sizes[-1])
    for at, memory_bytes in shown:
        label = f"with {size(memory_bytes)}" if len(shown) > 1 else None
        alpha = 0.35 + 0.65 * (at + 1) / len(sizes)
        axes.plot(matrix.cpus, [row[at] for row in matrix.rates], label=label, color="#0072b2", alpha=alpha)
    tried = sorted(found.points.values(), key=lambda result: result.cpus)
    axes.errorbar(
        [result.cpus / each for result in tried],
        [result.rate.value for result in tried],
        yerr=[
            [result.rate.value - result.rate.low for result in tried],
            [result.rate.high - result.rate.value for result in tried],
        ],
        fmt="o",
        color="#1c2126",
        capsize=3,
        label="measured, with 95 % interval",
    )
    axes.axvline(need.demand.cpus, color="#d55e00", linestyle="--", label=f"demand: {need.demand.cpus:g} CPUs")
    axes.set_xlabel("CPUs" + (" for each GPU" if need.gpus else ""))
    axes.set_ylabel(need.unit)
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2)
    try:
        with common.replacing(Path(name)) as part:
            figure.savefig(part, dpi=120)
    except OSError as error:
        raise UsageError(f"cannot write {name}: {error.strerror}; name a file of yours by --plot") from None
