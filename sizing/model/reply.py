"""Checks a traced process's reply field by field, because the user's own code ran in that process."""

from __future__ import annotations

import json
from typing import Any

from sizing.base.errors import Untraceable, UsageError
from sizing.base.parallel import Parallel
from sizing.model.trace import CATEGORIES, OperatorTotals, StepTrace, Target

_MOST_BYTES = 2**60
_MOST_OPERATORS = 10_000


def number(value: Any) -> int:
    """Check that a value is a plausible size, a whole number, and return it; raises ValueError."""
    if type(value) is not int or not 0 <= value <= _MOST_BYTES:
        raise ValueError(f"{value!r} is no size")
    return value


def word(value: Any, most: int = 400) -> str:
    """Check that a value is text of at most `most` letters; return it printable, on one line. Raises ValueError."""
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"{value!r} is no text")
    return " ".join("".join(letter if letter.isprintable() else " " for letter in value).split())


def refused(said: Any) -> None:
    """Raise Untraceable or UsageError if a child gave a reason instead of an answer."""
    if "refused" in said:
        raise (UsageError if said.get("usage") is True else Untraceable)(word(said["refused"], 1000))


def read(data: bytes, batch: int, parallel: Parallel, target: Target, trace_s: float) -> StepTrace:
    """Read the trace that a child wrote; raises Untraceable or UsageError if it gave a reason instead."""
    try:
        said = json.loads(data)
        refused(said)
        kinds = {name: number(said["by_category"][name]) for name in CATEGORIES}
        peak = number(said["peak_bytes"])
        if sum(kinds.values()) != peak:
            raise ValueError("the categories do not add up to the peak")
        rows = said["operators"][:_MOST_OPERATORS]
        return StepTrace(
            batch=batch,
            parallel=parallel,
            target=target,
            peak_bytes=peak,
            by_category=kinds,
            parameters=number(said["parameters"]),
            operators=tuple(
                OperatorTotals(word(name), number(a), number(b), number(c), word(d, 8)) for name, a, b, c, d in rows
            ),
            collectives={word(name, 40): number(size) for name, size in said["collectives"].items()},
            torch=word(said["torch"], 80),
            trace_s=trace_s,
            upper_bounds=number(said["upper_bounds"]),
            collective_calls={word(name, 40): number(calls) for name, calls in said["collective_calls"].items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Untraceable(f"the traced process answered what no trace is ({type(error).__name__}: {error})") from None
