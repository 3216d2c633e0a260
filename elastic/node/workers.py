"""Workers as forks of a process that has torch imported already: a start costs milliseconds instead of seconds."""

from __future__ import annotations

import atexit
import mmap
import os
import runpy
import sys
import traceback
from collections.abc import Mapping, Sequence

from elastic import session
from elastic.backends import KINDS
from elastic.errors import WireError
from elastic.link.child import prepare_child


def run_worker(argv: Sequence[str], environ: Mapping[str, str], page: mmap.mmap) -> int:
    """Becomes a worker: runs the script `argv[0]` as `__main__` and returns its exit code, everything said goodbye to.

    Refuses to run without a rank: a worker that trains alone by mistake looks like one that works.
    """
    prepare_child()
    os.environ.update(environ)
    if not has_rank():
        print("bft: a worker was started without a rank; this is a fault of bftd, please report it", file=sys.stderr)
        os._exit(70)
    try:
        session.install(session.Session.connect(os.environ, page))
    except (OSError, WireError):
        # The driver went away between the start and now, or another process has its port: the agent learns it too.
        os._exit(75)
    # Neither the script nor what it starts needs it, and some scripts log their environment.
    os.environ.pop("BFT_SECRET", None)
    code = _run_script(argv)
    if code == 0:
        session.current().farewell()
    # Horovod says goodbye to its peers at exit; a fork would leave without these handlers.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def has_rank() -> bool:
    """Whether this process was told by any back-end which worker of how many it is."""
    return any(kind.rank_variable in os.environ for kind in KINDS.values())


def _run_script(argv: Sequence[str]) -> int:
    sys.argv = list(argv)
    # As `python script.py` does; the folder is the one that the user submitted from, see elastic.script.
    sys.path.insert(0, os.environ.get("BFT_SCRIPT_DIR", os.path.dirname(os.path.abspath(argv[0]))))
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)
        session.current().failed(str(stop.code))
        return 1
    except BaseException:
        _print_own_traceback()
        return 1
    return 0


def _print_own_traceback() -> None:
    """Prints the user's error as `python script.py` would: without the frames of bftd and runpy."""
    kind, error, trace = sys.exc_info()
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(kind, error, trace))
    print(text, end="", file=sys.stderr)
    session.current().failed(text)
