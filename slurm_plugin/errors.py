"""Errors between bftd and Slurm; every message is one line that says what to do next."""

from __future__ import annotations


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
