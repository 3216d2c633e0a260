"""What can be wrong with what travels between daemon and drivers; every message is one line."""

from __future__ import annotations


class ProtocolError(Exception):
    """Root of the errors of this package; `exit_code` is what a command line ends with."""

    exit_code = 1


class Malformed(ProtocolError):
    """A message lacks a field, or has one that cannot be; the line names the field."""

    exit_code = 2
