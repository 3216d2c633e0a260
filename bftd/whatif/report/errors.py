"""What can go wrong with a report."""

from __future__ import annotations

from bftd.errors import UsageError


class ReportError(UsageError):
    """A report cannot be made of what was given; the message names the file and what to do next."""
