"""Errors of a report."""

from __future__ import annotations

from bftd.base.errors import UsageError


class ReportError(UsageError):
    """A report cannot be made of the given input; the message names the file and what to do next."""
