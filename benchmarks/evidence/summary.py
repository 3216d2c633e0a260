"""The table of README: what bftd costs and earns, a line a bound, from the figures of several results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.evidence.model import Figure

_PAGE = "docs/evidence/"


def _any(values: Sequence[float]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: `met` judges its `figures`, named BENCHMARK.PART, by the bound that was set."""

    what: str
    figures: tuple[str, ...]
    page: str
    bound: str = ""
    met: Callable[[Sequence[float]], bool] = _any


ROWS = (
    Row(
        "start of a regular job after its submission: all nodes harvested, all idle",
        ("give_back.harvested", "give_back.idle"),
        "benchmarks.md#giving-nodes-back-and-resizes",
        "1 s apart",
        lambda values: values[0] - values[1] <= 1.0,
    ),
    Row("mean wait of jobs in simulated queues, more than without bftd", ("twin.bftd.wait",), "impact.md#waits"),
    Row(
        "slots lost, of jobs that start on harvested nodes",
        ("impact.slots",),
        "impact.md#results",
        "0; 1 in 100 with long backfill cycles",
        lambda values: values[0] == 0,
    ),
    Row(
        "idle node-seconds held by pilots, in which nothing trains here: Slurm's defaults",
        ("impact.default.harvested_share",),
        "impact.md#results",
        "85 %",
        lambda values: values[0] >= 0.85,
    ),
    Row(
        "U, simulated: outcome of a replayed week over that of as many dedicated nodes; its faults mended",
        ("paper.U", "paper.U-exact"),
        "paper.md",
        "the paper's 80 %",
        lambda values: values[0] >= 0.8,
    ),
    Row(
        "time of a plan, 35 trainers on 800 nodes",
        ("milp.plan",),
        "benchmarks.md#the-allocation-problem",
        "2 ms",
        lambda values: values[0] <= 2.0,
    ),
    Row(
        "traced memory of training steps, of what a CPU took: mean, worst",
        ("sizing_memory.mean", "sizing_memory.worst"),
        "benchmarks.md#sizing",
        "99 %, 97 %",
        lambda values: values[0] >= 0.99 and values[1] >= 0.97,
    ),
)


def table(figure: Callable[[str], Figure | None], command: Callable[[str], str]) -> str:
    """Return the rows in Markdown, without those of which a figure is None: no result that is kept has it.

    `command` gives what a user types for a benchmark by its name.
    """
    lines = ["| what | measured | bound | command |", "| --- | --- | --- | --- |"]
    for row in ROWS:
        found = [one for name in row.figures if (one := figure(name)) is not None]
        if len(found) < len(row.figures):
            continue
        text = ", ".join(one.text for one in found)
        missed = "" if row.met([one.value for one in found]) or "missed" in text else ", **missed**"
        words = command(row.figures[0].partition(".")[0])
        lines.append(f"| {row.what} | [{text}]({_PAGE}{row.page}) | {row.bound}{missed} | `{words}` |")
    return "\n".join(lines)
