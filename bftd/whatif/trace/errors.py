"""What can be wrong with a trace, or with what one is made from."""

from __future__ import annotations

from bftd.errors import UsageError


class TraceError(UsageError):
    """A trace, or a file that one is made from, cannot be used; the message names the file and the line, if known."""
