"""Errors of traces and of the files they are made from."""

from __future__ import annotations

from bftd.base.errors import UsageError


class TraceError(UsageError):
    """A trace, or a file it is made from, cannot be used; the message names the file and the line, if known."""
