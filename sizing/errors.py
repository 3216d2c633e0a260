"""What can go wrong while a job is sized; every message is one line that says what to do next."""

from __future__ import annotations


class SizingError(Exception):
    """Root of the errors of this package; `exit_code` is what a command line ends with."""

    exit_code = 1


class UsageError(SizingError):
    """What was asked for cannot be: a wrong option, name, size or file."""

    exit_code = 2


class Untraceable(SizingError):
    """A training step could not be followed; the message names the reason, and the formula may do instead."""


class DoesNotFit(SizingError):
    """A model fits none of the GPUs that there are; the message says by how much, and what would help.

    `times` is how many times as much memory as a GPU has it needs, infinity where it is not for memory.
    """

    def __init__(self, said: str, times: float = float("inf")) -> None:
        super().__init__(said)
        self.times = times


class NoTable(SizingError):
    """No communication table for a link, or none that reaches so far; the message says how to make one."""


class NoProfile(SizingError):
    """A stage was not profiled on a device; the message says how to profile it."""
