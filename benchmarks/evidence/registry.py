"""The benchmarks whose results are kept, with the tables and figures that pages show of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.twin import __main__ as twin
from benchmarks.twin import features, recorded


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value as pages print it, and the interval that another run should lie in, if one is stated."""

    text: str
    value: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark; `minutes` are on two idle cores, `tables` and `figures` are made of what `--json` prints."""

    words: tuple[str, ...]
    minutes: float
    tables: Mapping[str, Callable[[Any], str]]
    figures: Callable[[Any], Mapping[str, Figure]] = field(default=lambda result: {})


def _waits(result: Any) -> Mapping[str, Figure]:
    found = {}
    for row in result["conditions"]:
        wait, name = row["wait"], row["name"].replace(", ", "-").replace(" ", "-")
        mean, half = wait["percent"], wait["percent_half_width"]
        found[f"{name}.wait"] = Figure(f"{mean:+.1f} ± {half:.1f} %", mean, (mean - half, mean + half))
        share = row["same_start_share"]
        found[f"{name}.alike"] = Figure(f"{share:.0%}".replace("%", " %"), share)
    return found


_TWIN = {"waits": lambda result: twin.table(result["conditions"])}
BENCHMARKS: Mapping[str, Benchmark] = {
    "twin": Benchmark(("benchmarks.twin", "--streams", "3000", "--courses", "1"), 4, _TWIN, _waits),
    "twin_plain": Benchmark(("benchmarks.twin", "--streams", "3000", "--courses", "1", "--plain"), 4, _TWIN, _waits),
    "twin_recorded": Benchmark(
        ("benchmarks.twin.recorded",),
        1,
        {"table": lambda result: recorded.table([recorded.Likeness(**row) for row in result])},
    ),
    "twin_features": Benchmark(
        ("benchmarks.twin.features",),
        1,
        {"table": lambda result: features.table([features.FeatureLikeness.of(row) for row in result])},
    ),
}
