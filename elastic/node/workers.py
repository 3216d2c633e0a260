"""Workers as forks of a process that has already imported torch: a start costs milliseconds instead of seconds."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import hashlib
import io
import mmap
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from multiprocessing import connection
from types import CodeType, ModuleType
from typing import Any, NoReturn

from bftd import own_packages
from elastic.backends import KINDS
from elastic.base.errors import EXIT_LINK_LOST, OF_A_PEER, ElasticError, WireError
from elastic.link.child_process import adopt_orphans, outlast_notice, prepare_child
from elastic.node import devices
from elastic.node.cleanup import NodeCleanup, exit_code
from elastic.node.link import AgentLink
from elastic.worker import driver_link

_OF_A_GROUP = re.compile(r"(?i)\bgloo\b|nccl|tcpstore|c10d")
"""Phrases of torch's libraries for groups of workers."""

_UNFLUSHED = 120
"""Python's exit code if its last output cannot be written."""

LOOK_S = 1.0
_SOON_S = 0.02
"""A worker that has closed its files ends within microseconds, or goes on forever as a daemon of its own making."""


class WorkerProcess:
    """A fork of the node process that becomes a worker; `page` has its last step (elastic.worker.driver_link)."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], close: Callable[[], None]) -> None:
        """Fork it; `close` is called in the fork, to close what is the node process's. Raises OSError."""
        self.page = driver_link.new_page()
        self.end: int | None = None
        """Readable once the worker has ended; None once that was noticed. No fork of the worker holds the other end."""

        ours, theirs = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(ours)
            raise
        else:
            if self.pid == 0:
                os.close(ours)
                _become(argv, environ, self.page, theirs, close)
            self.end = ours
        finally:
            os.close(theirs)

    def close(self) -> None:
        """Close `end`."""
        if self.end is not None:
            os.close(self.end)
            self.end = None


class NodeWorkers:
    """The workers of a node process; it waits for their ends and for its agent's messages alike."""

    def __init__(
        self,
        link: AgentLink,
        argv: Sequence[str],
        helpers: Callable[[], Collection[int]] = tuple,
        close_in_child: Callable[[], None] = lambda: None,
    ) -> None:
        """`helpers` are as in NodeCleanup; `close_in_child` closes in a worker what the back-end has open."""
        self._link = link
        self._argv = argv
        self._close_in_child = close_in_child
        self._all: list[WorkerProcess] = []
        self.cleanup = NodeCleanup(helpers)

    @property
    def pids(self) -> list[int]:
        """The ids of the workers that were not reaped."""
        return [worker.pid for worker in self._all]

    def start(self, environ: Mapping[str, str]) -> WorkerProcess:
        """Fork a worker with these variables; raises OSError."""
        worker = WorkerProcess(self._argv, environ, self._close)
        self._all.append(worker)
        return worker

    def wait(self, most_s: float = LOOK_S) -> None:
        """Return when the agent has sent something, or a worker seems to have ended, or the time is over."""
        ends = {worker.end: worker for worker in self._all if worker.end is not None}
        if any(worker.end is None and exit_code(worker.pid) is None for worker in self._all):
            most_s = _SOON_S
        ready = connection.wait([self._link.fileno(), *ends], most_s)
        for end in ends.keys() & set(ready):
            ends[end].close()

    def reap(self, worker: WorkerProcess) -> int | None:
        """Return the exit code of a worker, as subprocess gives it, None while it lives; call it until it has one."""
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        if not pid:
            return None
        self._forget(worker)
        return os.waitstatus_to_exitcode(status)

    def stop(self) -> None:
        """Kill all workers, with the processes that they started; returns when they are gone, or after KILLED_S."""
        self.cleanup.kill(self.pids, self.pids)
        self.cleanup.wait_for_killed()
        for worker in list(self._all):
            if self.reap(worker) is None:
                self._forget(worker)  # it is cleared with the leftovers, once the kernel lets it go
        self.cleanup.settle(())

    def _forget(self, worker: WorkerProcess) -> None:
        worker.close()
        self._all.remove(worker)

    def _close(self) -> None:
        self._link.close_in_child()
        self._close_in_child()
        for worker in self._all:
            worker.close()


def _become(
    argv: Sequence[str], environ: Mapping[str, str], page: mmap.mmap, end: int, close: Callable[[], None]
) -> NoReturn:
    """Run the script in a fork."""
    code = 1
    try:
        close()
        ends = [end]
        os.register_at_fork(after_in_child=lambda: _close_once(ends))
        code = run_worker(argv, environ, page)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _close_once(ends: list[int]) -> None:
    # In a fork of a fork the descriptor's number may be another file's.
    while ends:
        with contextlib.suppress(OSError):
            os.close(ends.pop())


def run_worker(argv: Sequence[str], environ: Mapping[str, str], page: mmap.mmap) -> int:
    """Become a worker: run the script `argv[0]` as `__main__`, finish as Python does, and return the exit code.

    Refuses to run without a rank: a worker that trains alone by mistake looks like one that works.
    """
    prepare_child()
    _become_ordinary()
    os.environ.update(environ)
    if not has_rank():
        print("bft: a worker was started without a rank; this is a fault of bftd, please report it", file=sys.stderr)
        os._exit(70)
    os.environ.update(devices.of_worker(os.environ))
    try:
        driver_link.install(driver_link.DriverLink.connect(os.environ, page))
    except (OSError, WireError):
        # The driver has gone away since the start, or another process has its port: the agent finds out too.
        os._exit(EXIT_LINK_LOST)
    # Neither the script nor its children need the secret, and some scripts log their environment.
    os.environ.pop("BFT_SECRET", None)
    code = _run_script(argv)
    # Looked up only now: a fork that runs to the script's end has a session that does nothing.
    code = driver_link.current().ended(code)
    # From here on in Python's own order. An executor's last task may write the final checkpoint.
    threading._shutdown()  # type: ignore[attr-defined]
    # Horovod takes leave of its peers at exit; a fork would end without these handlers.
    atexit._run_exitfuncs()
    code = _flush_all() or code
    if code == -signal.SIGINT:
        # As Python does, so that a waiting parent sees the signal.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code


def has_rank() -> bool:
    """Whether any back-end has told this process its rank among the workers."""
    return any(kind.rank_variable in os.environ for kind in KINDS.values())


def _become_ordinary() -> None:
    """Undo what a fork of the node process has and a process started by a shell does not."""
    outlast_notice()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Signals that the script sends to its group do not reach the other workers.
    os.setpgid(0, 0)
    # A helper that goes into the background stays below this worker, so that its origin is known; see leftovers.
    adopt_orphans()
    multiprocessing.current_process().name = "MainProcess"
    # The first call caches the folder, and the node process made it: the script may still set $TMPDIR.
    tempfile.tempdir = None
    # Unlike Python's own, numpy's generator continues in every fork from the same point: all workers of a node, and all
    # their restarts, would shuffle and augment alike.
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()


def _run_script(argv: Sequence[str]) -> int:
    sys.argv = list(argv)
    # As `python script.py` does; the folder is the one that the user submitted from, see elastic.options.job_script.
    sys.path.insert(0, os.environ.get("BFT_SCRIPT_DIR", os.path.dirname(os.path.abspath(argv[0]))))
    try:
        _execute(argv[0])
    except SystemExit as stop:
        return _exit_code(stop.code)
    except ElasticError as error:
        return _exit_code(f"bft: {error}")  # the text says what to do next; a traceback would not help
    except BaseException as error:
        _print_own_traceback()
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _execute(path: str) -> None:
    """Run a file as `__main__`, which it stays to the end: threads and exit handlers pickle what it defines."""
    main = ModuleType("__main__")
    vars(main).update(
        __file__=path,
        __builtins__=builtins,
        __cached__=None,
        __annotations__={},
        __loader__=SourceFileLoader("__main__", path),
    )
    sys.modules["__main__"] = main
    exec(_compiled(path), vars(main))


def _compiled(path: str) -> CodeType:
    """Compile the script from the very bytes whose digest the driver gave; exits if it is another script."""
    wanted = os.environ.pop("BFT_SCRIPT_SHA256", "")
    try:
        with io.open_code(path) as file:
            content = file.read()
    except OSError as error:
        cure = "set BFT_STATE_DIR to a folder of yours that" if wanted else "put it where"
        raise SystemExit(f"bft: {path}: {error.strerror}; {cure} every node can read") from None
    if wanted and hashlib.sha256(content).hexdigest() != wanted:
        raise SystemExit(f"bft: {path} is not the script that was submitted: it was changed; submit it again")
    return compile(content, path, "exec", dont_inherit=True)


def _exit_code(wanted: object) -> int:
    """Return Python's exit code after sys.exit(wanted)."""
    if wanted is None:
        return 0
    if isinstance(wanted, int):
        return wanted & 0xFF if -(1 << 63) <= wanted < 1 << 63 else 0xFF
    print(wanted, file=sys.stderr)
    driver_link.current().failed(str(wanted))
    return 1


def _flush_all() -> int:
    """Write out what unclosed files still hold, as the end of an interpreter does; returns 0 if all is written."""
    code = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception as error:
            code = _UNFLUSHED
            with contextlib.suppress(Exception):
                print(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=sys.stderr)
    # Scripts freeze their objects before they start data loaders: the search would not find them.
    gc.unfreeze()
    files = [(type(file), file) for file in gc.get_objects() if issubclass(type(file), io.IOBase)]
    # A text file writes into its buffer and a compressed one into a file, so they come before buffers.
    for is_due, end in _ENDS:
        for kind, file in files:
            if is_due(kind):
                with contextlib.suppress(Exception):  # closed, detached or without a reader: Python ignores that too
                    end(file)
    return code


def _is_compressed(kind: type) -> bool:
    return issubclass(kind, io.BufferedIOBase) and kind.__module__ not in ("io", "_io")


_ENDS: tuple[tuple[Callable[[type], bool], Callable[[Any], object]], ...] = (
    (lambda kind: issubclass(kind, io.TextIOWrapper), io.TextIOWrapper.flush),
    (_is_compressed, lambda file: file.close()),
    (lambda kind: issubclass(kind, (io.BufferedWriter, io.BufferedRandom)), lambda file: file.flush()),
)
"""The ways to end open files, by their type, in this order."""


def _print_own_traceback() -> None:
    """Report the user's error, and print it as `python script.py` would: without the frames of bftd."""
    kind, error, trace = sys.exc_info()
    assert kind is not None
    assert error is not None
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(kind, error.with_traceback(trace), trace))
    # At an ordinary shrink the peers of a node that left fail like this: the driver, which has the text, says a line.
    quiet = _OF_A_GROUP.search(str(error)) and OF_A_PEER.search(text)
    if driver_link.current().failed(text) and quiet:
        return
    try:
        sys.excepthook(kind, error.with_traceback(trace), trace)
    except BaseException:
        traceback.print_exc()
    if isinstance(error, (AttributeError, ImportError)) and (path := own_packages.namesake(sys.path[:1])):
        print(f"bft: {path} is hidden by bftd's package of that name: rename it", file=sys.stderr)
