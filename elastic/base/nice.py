"""Background work that leaves the processors to the work in the foreground."""

from __future__ import annotations

import contextlib
import os
import threading

_NICE = 10
"""A tenth of the share of other threads if they want all of a core, and all that they leave. It is never close to
nothing: a thread that is not scheduled while it holds the interpreter's lock stops its process."""


def yield_to_others() -> None:
    """Lower the priority of the calling thread only, for good: an unprivileged thread cannot raise it again."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
