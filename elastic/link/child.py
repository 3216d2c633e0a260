"""How a process that runs user code is prepared, in one place, because each line of it was once forgotten.

Slurm sends SIGTERM to *every* process of a job, so a worker that obeyed it would die before its state is fetched; and
a blocked signal mask, a core dump or a missing parent-death signal each cost seconds or leave processes behind.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import threading
from types import FrameType

from elastic.link.descriptors import ordinary_limit

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent ends, and covers the parent that already has."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent ends, daemons among them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def prepare_child() -> None:
    """Makes this process a worker's: dies with its parent, ignores SIGTERM, no core file, no blocked signal."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ordinary_limit()


def outlast_notice() -> None:
    """Has SIGTERM do nothing here, but what it always does in all that this process starts.

    An ignored signal stays ignored in children and through exec: `Popen.terminate()` would do nothing and a
    multiprocessing pool never end. A handler does not outlive exec, and forks put the default back.
    """
    signal.signal(signal.SIGTERM, _stay)
    # A system call that a handler interrupts goes on, as if the signal were ignored.
    signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_obey_again)


def _stay(_number: int, _frame: FrameType | None) -> None:
    """Slurm's notice is the agent's business."""


_masks: dict[int, set[int]] = {}
"""The signal mask of each thread that forks at this moment."""


def _hold_back() -> None:
    # What reaches a fork before the default is back would be lost on it, and its parent would wait for ever.
    _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop(threading.get_ident()))


def _obey_again() -> None:
    # A handler of the script's own is inherited, as in any other process.
    if signal.getsignal(signal.SIGTERM) is _stay:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_through()
