"""Checked readers of numbers and JSON fields: every fault becomes one `ProblemError` line that names the field."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from itertools import pairwise
from typing import Any, TypeVar

from milp.errors import ProblemError

T = TypeVar("T", bound=Hashable)

# Equation (16) multiplies three such numbers and sums over the trainers; solvers fail when that overflows.
_LARGEST = 1e30
# Far beyond any cluster, and sums of such counts still fit the 64-bit arrays of the solvers.
_MOST_NODES = 10**15
_WIDEST = 2**63 - 1
_LONGEST = 80


def whole(where: str, value: object, *, at_least: int) -> None:
    """Require an integer (no bool, no float) from `at_least` up to a limit far above any cluster's size."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProblemError(f"{where} must be a whole number, not {_shown(value)}")
    if value < at_least:
        raise ProblemError(f"{where} must be {at_least} or more, not {_shown(value)}")
    if value > _MOST_NODES:
        raise ProblemError(f"{where} is above {_MOST_NODES:g}: no cluster has so many nodes")


def real(where: str, value: object) -> None:
    """Require a number of zero or more that is small enough for products of such numbers to be finite."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ProblemError(f"{where} must be a number, not {_shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ProblemError(f"{where} must be finite, not {value}")
    if value < 0:
        raise ProblemError(f"{where} must not be negative, but is {_shown(value)}")
    if value > _LARGEST:
        raise ProblemError(f"{where} is above {_LARGEST:g}: choose another unit")
    if isinstance(value, int) and value > _WIDEST:
        raise ProblemError(f"{where} has more than 64 bits as a whole number: write it as {float(value):g}")


def text(where: str, value: object, *, empty: bool = False) -> None:
    """Require a string, non-empty unless `empty`."""
    if not isinstance(value, str) or not (value or empty):
        raise ProblemError(f"{where} must be a {'' if empty else 'non-empty '}string, not {_shown(value)}")


def increasing(where: str, values: tuple[int, ...]) -> None:
    """Require strictly increasing values."""
    for before, after in pairwise(values):
        if after <= before:
            raise ProblemError(f"{where} must be strictly increasing, but {after} follows {before}")


def first_repeated(values: Iterable[T]) -> T | None:
    """Return the first value seen a second time, or None."""
    seen: set[T] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def mapping(where: str, value: object, known: Collection[str], required: Collection[str]) -> Mapping[str, Any]:
    """Require a JSON object with every required key and no unknown one; the error suggests the nearest known key."""
    if not isinstance(value, Mapping):
        raise ProblemError(f"{where} must be a JSON object, not {type(value).__name__}")
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ProblemError(f"{where} has an unknown field {key!r}: {hint}")
    for key in required:
        if key not in value:
            raise ProblemError(f"{where} lacks the field {key!r}")
    return value


def array(where: str, value: object) -> tuple[Any, ...]:
    """Require a JSON array and return it as a tuple."""
    if not isinstance(value, (list, tuple)):
        raise ProblemError(f"{where} must be a JSON array, not {type(value).__name__}")
    return tuple(value)


def _shown(value: object) -> str:
    """Return the value as one short line for a message, however long or nested it is."""
    if isinstance(value, int) and abs(value) > _WIDEST:  # Python refuses to write thousands of digits
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
