"""How a process that runs user code is prepared, in one place, because each line of it was once forgotten.

Slurm sends SIGTERM to *every* process of a job, so a worker that obeyed it would die before its state is fetched; and
a blocked signal mask, a core dump or a missing parent-death signal each cost seconds or leave processes behind.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal

from elastic.link.descriptors import ordinary_limit

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent ends, and covers the parent that already has."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def prepare_child() -> None:
    """Makes this process a worker's: dies with its parent, ignores SIGTERM, no core file, no blocked signal."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ordinary_limit()
