"""The set-up of a process that runs user code, in one place, because each line of it was once forgotten.

Slurm sends SIGTERM to *every* process of a job, so a worker that obeyed it would die before it could upload its state;
and a blocked signal mask, a core dump or a missing parent-death signal each cost seconds or leave processes behind.
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
    """Ask the kernel to kill this process when its parent ends, and exit if the parent already has."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends, daemons among them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def prepare_child() -> None:
    """Prepare a worker's process: it dies with its parent, ignores SIGTERM, dumps no core and blocks no signal."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ordinary_limit()


def outlast_notice() -> None:
    """Make SIGTERM do nothing in this process, but keep its default effect in all processes that this one starts.

    An ignored signal stays ignored in children and through exec: `Popen.terminate()` would do nothing and a
    multiprocessing pool would never end. A handler does not outlive exec, and forks restore the default.
    """
    signal.signal(signal.SIGTERM, _stay)
    # A system call that the handler interrupts is restarted, as if the signal were ignored.
    signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_obey_again)


def _stay(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the agent handles Slurm's notice."""


_masks: dict[int, set[int]] = {}
"""The signal mask of each thread that is forking."""


def _hold_back() -> None:
    # A signal that reached a fork before the default is restored would be lost, and its parent would wait forever.
    _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop(threading.get_ident()))


def _obey_again() -> None:
    # A handler of the script's own is inherited, as in any other process.
    if signal.getsignal(signal.SIGTERM) is _stay:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_through()
