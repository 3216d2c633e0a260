"""Errors between bftd and Slurm; every message is one line that says what to do next."""

from __future__ import annotations

_SHOWN = 160  # the most characters of a text in a message


class SlurmError(Exception):
    """Root of the errors of this package; `exit_code` is the exit code of a command line."""

    exit_code = 1


class SlurmMissing(SlurmError):
    """A Slurm command or daemon is not installed here."""


class CommandError(SlurmError):
    """A Slurm command failed, or gave no answer within its time-out."""


class NoAnswer(CommandError):
    """Slurm did not report the outcome of a request: it may have been carried out, or may yet be."""


class SnapshotError(SlurmError):
    """The cluster's state could not be read completely; nothing may be concluded from the parts that were read."""


class UnknownPartition(SlurmError):
    """A partition of this name does not exist."""

    exit_code = 2


class SandboxError(SlurmError):
    """The private cluster cannot be started, found or ended as asked."""


def one_line(text: str) -> str:
    """Shorten a text to one line for a message, without line ends and control characters."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * _SHOWN])
    shown = " ".join(shown.split())
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
