"""Workers as forks of a process that has torch imported already: a start costs milliseconds instead of seconds."""

from __future__ import annotations

import atexit
import builtins
import hashlib
import mmap
import os
import sys
import traceback
import types
from collections.abc import Mapping, Sequence

from elastic import session
from elastic.backends import KINDS
from elastic.errors import EXIT_LINK_LOST, WireError
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
        os._exit(EXIT_LINK_LOST)
    # Neither the script nor what it starts needs it, and some scripts log their environment.
    os.environ.pop("BFT_SECRET", None)
    code = session.current().ended(_run_script(argv))
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
        exec(_compiled(argv[0]), _new_main(argv[0]).__dict__)
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


def _compiled(path: str) -> types.CodeType:
    """The script's code, of the very bytes whose digest the driver has told; exits where it is another script."""
    wanted = os.environ.pop("BFT_SCRIPT_SHA256", "")
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        cure = "set BFT_STATE_DIR to a folder of yours that" if wanted else "put it where"
        raise SystemExit(f"bft: {path}: {error.strerror}; {cure} every node can read") from None
    if wanted and hashlib.sha256(content).hexdigest() != wanted:
        raise SystemExit(f"bft: {path} is not the script that was submitted: it was changed; submit it again")
    return compile(content, path, "exec", dont_inherit=True)


def _new_main(path: str) -> types.ModuleType:
    """An empty `__main__`, as Python makes it for a script."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __cached__=None, __builtins__=builtins)
    sys.modules["__main__"] = main
    return main


def _print_own_traceback() -> None:
    """Prints the user's error as `python script.py` would: without the frames of bftd."""
    kind, error, trace = sys.exc_info()
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(kind, error, trace))
    print(text, end="", file=sys.stderr)
    session.current().failed(text)
