"""The progress of work that takes a while, told to whoever called for it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""A function told the name of the work and the part done: 0 as it begins, 1 as it ends; in the caller's thread."""


def quiet(name: str, part: float) -> None:
    """Tell nobody."""
