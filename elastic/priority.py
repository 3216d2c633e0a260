"""Work in the background that leaves the processors to what is in front of it."""

from __future__ import annotations

import contextlib
import os
import threading

_NICE = 10
"""A tenth of what others have where they want all of a core, and all that they leave; never next to nothing, as a
thread that is stopped while it has the interpreter's lock stops its process."""


def yield_to_others() -> None:
    """Makes the calling thread, and no other of its process, step back for good: nobody may raise it again."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
