"""Traces that record when each node of a cluster was idle, as files and as arrays."""

from bftd.whatif.trace.errors import TraceError
from bftd.whatif.trace.files import read, write
from bftd.whatif.trace.model import Change, Trace

__all__ = ["Change", "Trace", "TraceError", "read", "write"]
