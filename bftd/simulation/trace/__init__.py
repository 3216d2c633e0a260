"""Traces that record when each node of a cluster was idle, as files and as arrays."""

from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.files import read, write
from bftd.simulation.trace.model import Change, Trace

__all__ = ["Change", "Trace", "TraceError", "read", "write"]
