"""Traces: which nodes of a cluster were idle when, as files and as arrays."""

from bftd.trace.errors import TraceError
from bftd.trace.files import read, write
from bftd.trace.model import Change, Trace

__all__ = ["Change", "Trace", "TraceError", "read", "write"]
