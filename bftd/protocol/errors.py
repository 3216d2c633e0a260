"""Errors in messages between daemon and drivers; every error's text is one line."""

from __future__ import annotations


class ProtocolError(Exception):
    """Base class of the errors of this package; `exit_code` is the exit code of a command that fails with one."""

    exit_code = 1


class Malformed(ProtocolError):
    """A message that lacks a field, or has an invalid one; the line names the field."""

    exit_code = 2
