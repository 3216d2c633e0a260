"""Errors of sizing a job; every message is one line that says what to do next."""

from __future__ import annotations


class SizingError(Exception):
    """The root of this package's errors; `exit_code` is that of a command which fails with it."""

    exit_code = 1


class UsageError(SizingError):
    """A request that cannot be met: a wrong option, name, size or file."""

    exit_code = 2


class Untraceable(SizingError):
    """A training step could not be followed; the message names the reason, and the formula may do instead."""


class DoesNotFit(SizingError):
    """A model fits no available GPU; the message says by how much, and what would help.

    `times` is the memory it needs over that of a GPU, infinity if memory is not the reason.
    """

    def __init__(self, said: str, times: float = float("inf")) -> None:
        super().__init__(said)
        self.times = times


class NoTable(SizingError):
    """No communication table for a link, or none that reaches so far; the message says how to make one."""


class NoProfile(SizingError):
    """A stage was not profiled on a device; the message says how to profile it."""
