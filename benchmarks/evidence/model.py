"""A benchmark whose result is kept, a figure of it, and the numbers of its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


def rounded(value: Any, digits: int = 6) -> Any:
    """JSON data with so many significant digits of each number, so that a file of samples stays small."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: rounded(each, digits) for key, each in value.items()}
    return [rounded(each, digits) for each in value] if isinstance(value, (list, tuple)) else value


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

    def markdown(self, result: Any) -> str:
        """Return all tables of a result."""
        return "\n\n".join(make(result) for make in self.tables.values())
