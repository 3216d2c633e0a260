"""What a pilot's workers have: how many of them there are, how many cores each, which network interface, and when."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from elastic.node import devices
from elastic.timing import TURN_LOOK_S, TURN_S

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def workers_per_node(environ: Mapping[str, str]) -> int:
    """One worker a GPU that this pilot may use, one where it has none."""
    return max(1, devices.count(environ))


def threads_per_worker(workers: int) -> int:
    """The cores that one of so many workers on this node has for itself, at least 1; two threads of a core are one."""
    cores = {_core(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, len(cores) // workers)


@contextlib.contextmanager
def turn_to_import(scratch: str) -> Iterator[None]:
    """Waits, for TURN_S at most, until fewer node processes of this user import here than there are CPUs for them.

    Who imports has one of the CPUs that its pilot may use, by a lock beside `scratch`, the pilot's own folder. So nodes
    that have CPUs of their own never wait, and of those that share some the first trains while the last imports: at
    once they would all be ready when the last one is. Where nothing can be locked, nobody waits.
    """
    names = [f"{scratch}/../bft-import-{os.uname().nodename}-{os.getuid()}-{cpu}" for cpu in os.sched_getaffinity(0)]
    deadline_s = time.monotonic() + TURN_S
    taken: tuple[str, int] | None = None
    with contextlib.suppress(OSError):
        while (taken := _locked(names)) is None and time.monotonic() < deadline_s:
            time.sleep(TURN_LOOK_S)
    try:
        yield
    finally:
        if taken is not None:
            with contextlib.suppress(OSError):
                os.unlink(taken[0])
            os.close(taken[1])


def _locked(names: Iterable[str]) -> tuple[str, int] | None:
    """The first of these files that nobody has locked, with its descriptor; raises OSError where one is another's."""
    for name in names:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return name, fd
        except BlockingIOError:
            os.close(fd)
        except OSError:
            os.close(fd)
            raise
    return None


def interface_settings(names: Iterable[str], interface: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """What to set the environment variables `names` to, those left out that the user has set."""
    # NCCL takes a bare name for a prefix: eth1 would be eth10 too.
    forms = {"NCCL_SOCKET_IFNAME": f"={interface}"}
    return {name: forms.get(name, interface) for name in names if interface and not environ.get(name)}


def _core(cpu: int) -> str:
    try:
        return Path(_SIBLINGS.format(cpu)).read_text()
    except OSError:
        return str(cpu)
