"""Replays of the tuner against logs of a search that measured every candidate of every cell (Alpa's form)."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sizing.base.errors import UsageError
from sizing.base.parallel import Parallel
from sizing.cells.tune import Tuned, tune

_COUNTS = ("first_layer", "last_layer", "dp", "tp")
_COLUMNS = (*_COUNTS, "cost_s", "fits")
_FITS = {"1": True, "0": False, "true": True, "false": False}
_MOST = 2**31


@dataclass(frozen=True, slots=True, order=True)
class LogCell:
    """The cell of a row: layers `first_layer` to `last_layer` (inclusive) on `gpus` = dp x tp GPUs."""

    first_layer: int
    last_layer: int
    gpus: int


Grid = Mapping[Parallel, Sequence[float | None]]
"""The seconds of each compiled variant of each split, None for a variant that does not fit."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A cell's whole grid and the tuner's result for it."""

    cell: LogCell
    grid: Grid
    tuned: Tuned

    @property
    def best_s(self) -> float | None:
        """The time of the fastest variant of the whole grid."""
        return min(filter(None, map(best_of, self.grid.values())), default=None)

    @property
    def accuracy(self) -> float | None:
        """The best time over that of the tuned plan: 1 at best, 0 for a missed cell, None if nothing fits."""
        if self.best_s is None:
            return None
        return 0.0 if self.tuned.time_s is None else self.best_s / self.tuned.time_s


def parse(text: str, name: str) -> dict[LogCell, Grid]:
    """Parse the cells of a log: CSV with at least the columns first_layer, last_layer, dp, tp, cost_s and fits.

    Rows with the same cell, dp and tp are variants of one split. Raises UsageError with the line.
    """
    rows = csv.DictReader(text.splitlines())
    try:
        missing = [column for column in _COLUMNS if column not in (rows.fieldnames or ())]
        if missing:
            raise UsageError(f"{name}, line 1: no column {', '.join(missing)}: a search log has {', '.join(_COLUMNS)}")
        names = rows.fieldnames or ()
        if twice := sorted({column for column in names if column and names.count(column) > 1}):
            raise UsageError(f"{name}, line 1: column {twice[0][:40]} is there twice: which one counts?")
        cells: dict[LogCell, dict[Parallel, list[float | None]]] = {}
        for row in rows:
            if None in row:
                raise UsageError(f"{name}, line {rows.line_num}: more cells than the {len(names)} columns of line 1")
            cell, split, seconds = _read(row, f"{name}, line {rows.line_num}")
            cells.setdefault(cell, {}).setdefault(split, []).append(seconds)
    except csv.Error as error:
        raise UsageError(f"{name}, line {rows.line_num}: {error}") from None
    if not cells:
        raise UsageError(f"{name} has no rows: give a log with a line for each candidate that was searched")
    return dict(sorted(cells.items()))


def best_of(variants: Sequence[float | None]) -> float | None:
    """Return the time of the fastest variant of a split that fits."""
    return min((seconds for seconds in variants if seconds is not None), default=None)


def replay(cells: Mapping[LogCell, Grid]) -> tuple[Replay, ...]:
    """Tune each cell; the tuner sees only the times of splits that it asks for."""
    found = []
    for cell, grid in cells.items():
        options = {split: lambda variants=variants: best_of(variants) for split, variants in grid.items()}
        found.append(Replay(cell, grid, tune(options)))
    return tuple(found)


def to_json(replays: Sequence[Replay]) -> dict[str, Any]:
    """Return the output of `python -m studies.crius search-log FILE --json`.

    `candidates` and `tried` count splits, not their variants.
    """
    scores = accuracies(replays)
    return {
        "cells": [
            {
                "first_layer": each.cell.first_layer,
                "last_layer": each.cell.last_layer,
                "gpus": each.cell.gpus,
                "best_s": each.best_s,
                "tuned_s": each.tuned.time_s,
                "tried": each.tuned.tried,
                "candidates": each.tuned.candidates,
                "feasible": each.best_s is not None,
                "called_feasible": each.tuned.best is not None,
            }
            for each in replays
        ],
        "mean_accuracy": sum(scores) / len(scores) if scores else None,
        "worst_accuracy": min(scores, default=None),
        "missed_feasible": missed(replays),
        "tried_ratio": sum(each.tuned.tried for each in replays) / sum(each.tuned.candidates for each in replays),
    }


def accuracies(replays: Iterable[Replay]) -> list[float]:
    """Return the accuracies of the cells in which something fits."""
    return [each.accuracy for each in replays if each.accuracy is not None]


def missed(replays: Iterable[Replay]) -> int:
    """Count the cells in which something fits but the tuner found nothing."""
    return sum(each.best_s is not None and each.tuned.best is None for each in replays)


def _read(row: Mapping[str | Any, str | Any], where: str) -> tuple[LogCell, Parallel, float | None]:
    numbers = {}
    for column in _COUNTS:
        said = (row[column] or "").strip()
        if not (said.isascii() and said.isdecimal()) or len(said) > 12 or int(said) > _MOST:
            raise UsageError(f"{where}: {column} is {said[:40]!r}: give a whole number")
        numbers[column] = int(said)
    if not (numbers["dp"] and numbers["tp"]):
        raise UsageError(f"{where}: dp {numbers['dp']} and tp {numbers['tp']}: at least 1 each")
    split = Parallel(numbers["dp"], numbers["tp"])
    if numbers["first_layer"] > numbers["last_layer"]:
        raise UsageError(f"{where}: its first layer is after its last")
    fits = _FITS.get((row["fits"] or "").strip().lower())
    if fits is None:
        raise UsageError(f"{where}: fits is {(row['fits'] or '')[:40]!r}: give 1 or 0")
    cell = LogCell(numbers["first_layer"], numbers["last_layer"], split.gpus)
    return cell, split, _seconds(row["cost_s"] or "", where) if fits else None


def _seconds(said: str, where: str) -> float:
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f"{where}: cost_s is {said[:40]!r}: give seconds, more than 0, of a candidate that fits")
    return seconds
