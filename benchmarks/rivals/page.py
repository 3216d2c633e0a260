"""The table of pages, from a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import markdown
from benchmarks.impact.recipe import DEFAULT
from benchmarks.rivals.systems import SYSTEMS

_HEAD = (
    "Slurm's settings, system",
    "samples kept, of the idle node-seconds",
    "computed and lost",
    "held without training",
    "regular jobs wait longer",
    "worst job",
    "slots lost, of jobs preempted for",
)


def table(result: Mapping[str, Any], *recipes: str) -> str:
    """A line a system, for each setting of Slurm or for `recipes` only."""
    rows = []
    for recipe in recipes or result["recipes"]:
        for system in SYSTEMS:
            row = result["recipes"][recipe]["systems"][system.name]
            trains = system.make is not None
            rows.append(
                (
                    f"{recipe}: {system.text}",
                    *(_share(row[name]) if trains else markdown.NOT_PRINTED
                      for name in ("won_share", "lost_share", "untrained_share")),
                    _delay(row["delay_s"]),
                    f"{row['worst_delay_s']:.0f} s",
                    f"{row['slots_lost']} of {row['preempted_for']}" if trains else markdown.NOT_PRINTED,
                )
            )  # fmt: skip
    return markdown.table(_HEAD, rows)


def short_table(result: Mapping[str, Any]) -> str:
    """A line a system that trains, under Slurm's defaults: what it wins and what it costs."""
    systems, rows = result["recipes"][DEFAULT.name]["systems"], []
    for system in SYSTEMS:
        if system.make is not None:
            row = systems[system.name]
            lost = f"{row['slots_lost']} of {row['preempted_for']}"
            rows.append((system.text, _share(row["won_share"]), _delay(row["delay_s"]), lost))
    return markdown.table((_HEAD[0].partition(", ")[2], _HEAD[1], _HEAD[4], _HEAD[6]), rows)


def _share(value: Mapping[str, Any]) -> str:
    return f"{100 * value['mean']:.0f} %{_spread(value, 100.0, '.0f')}"


def _delay(value: Mapping[str, Any]) -> str:
    return f"{value['mean']:+.1f} s{_spread(value, 1.0, '+.1f')}".replace("-", "−")


def _spread(value: Mapping[str, Any], factor: float, form: str) -> str:
    """The interval of the mean; of two seeds, whose interval says nothing, the values."""
    low, high = value["interval"] if len(value["by_seed"]) > 2 else (min(value["by_seed"]), max(value["by_seed"]))
    return f" ({format(factor * low, form)} to {format(factor * high, form)})"
