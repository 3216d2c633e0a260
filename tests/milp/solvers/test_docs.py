"""The table of solvers in the documentation is what the solvers declare."""

from __future__ import annotations

from pathlib import Path

from milp.solver import Feature, Solver
from milp.solvers.registry import every

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "solvers.md"


def row(solver: Solver) -> str:
    carries = ", ".join(feature.value for feature in Feature if feature in solver.features)
    if solver.features == frozenset(Feature):
        carries = "all of these"
    return f"| `{solver.name}` | {solver.summary} | {carries} | {'yes' if solver.proves else 'no'} |"


def test_the_table_of_solvers_is_what_they_declare() -> None:
    lines = PAGE.read_text().splitlines()
    start = lines.index("| name | how | beyond one class of nodes | finds the optimum |") + 2
    assert lines[start : start + len(every()) + 1] == [*map(row, every()), ""]


def test_the_page_says_what_there_is_to_carry() -> None:
    text = " ".join(PAGE.read_text().split())
    listed = f"beyond one class of nodes: {'; '.join(feature.value for feature in Feature)}."
    assert listed in text
