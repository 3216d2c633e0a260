"""What can go wrong between us and Slurm; every message is one line that says what to do next."""

from __future__ import annotations


class SlurmError(Exception):
    """Root of the errors of this package; `exit_code` is what a command line ends with."""

    exit_code = 1


class SlurmMissing(SlurmError):
    """A Slurm command or daemon is not installed here."""


class CommandError(SlurmError):
    """A Slurm command failed, or gave no answer within its time-out."""


class NoAnswer(CommandError):
    """Slurm did not say what became of a request: it may have been carried out, or may yet be."""


class SnapshotError(SlurmError):
    """The cluster's state could not be read whole; nothing may be concluded from what was read."""


class UnknownPartition(SlurmError):
    """A partition of this name does not exist."""

    exit_code = 2


class SandboxError(SlurmError):
    """The private cluster cannot be started, found or ended as asked."""
