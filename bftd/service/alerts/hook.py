"""The site's command: it gets a message on its standard input, for a limited time, and leaves no process behind."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress

from bftd.protocol.fields import printable

# Sending mail takes a second, but a web server may never answer.
LIMIT_S = 30.0
# The last bytes of its output are kept, for the log.
OUTPUT_BYTES = 4096
# Output beyond this is read slowly, so that the command waits for its reader and does not occupy the daemon.
_FLOOD_BYTES = 2**20
_READ_BYTES = 2**16
# The interval of checks: the command may end with its output still open, and the daemon may stop.
_LOOK_S = 0.1


def objection(command: str) -> str:
    """Return why a command cannot be run at present; "" if it can, or if there is none."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        return f"{command!r} is no command ({error}): see to its quotes"
    if "\0" in command or (command and not words):
        return f"{command!r} is no command: give its path"
    if not words or shutil.which(words[0], path=_path()):
        return ""
    if os.path.isfile(words[0]):
        return f"{words[0]} may not be run by this user: make it executable (chmod 755)"
    return f"there is no command {words[0]}: give its whole path"


def run(command: str, message: bytes, stop: threading.Event, limit_s: float = LIMIT_S) -> str:
    """Run a command, without a shell, until it ends; returns "" or why its message may not have been delivered.

    Call it in a thread. Processes that the command left running in its session end with it, and all of them once `stop`
    is set.
    """
    if why := objection(command):
        return why
    name = shlex.split(command)[0]
    try:
        with os.fdopen(os.memfd_create("message"), "w+b") as standard_input:
            standard_input.write(message)
            standard_input.seek(0)
            process = subprocess.Popen(
                shlex.split(command),
                stdin=standard_input,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )
    except OSError as error:
        return f"{name} cannot be run: {error.strerror}"
    try:
        ended, output = _watched(process, stop, limit_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also the processes that it left running
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if stop.is_set() and not ended:
        return f"{name} was ended with the daemon"
    if not ended:
        return f"{name} had not ended after {limit_s:.0f} s and was killed"
    if process.returncode == 0:
        return ""
    lines = output.decode(errors="replace").strip().splitlines()
    how = f"exit code {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
    return f"{name} ended with {how}" + (f": {printable(lines[-1])}" if lines else "")


def _watched(process: subprocess.Popen[bytes], stop: threading.Event, limit_s: float) -> tuple[bool, bytes]:
    """Return whether it ended in time, and the last of its output."""
    assert process.stdout is not None
    output, end_s, descriptor = b"", time.monotonic() + limit_s, process.stdout.fileno()
    is_open, length = True, 0
    while not stop.is_set() and time.monotonic() < end_s:
        ended = process.poll() is not None
        if is_open and select.select([descriptor], [], [], 0.0 if ended else _LOOK_S)[0]:
            part = os.read(descriptor, _READ_BYTES)
            output, is_open, length = (output + part)[-OUTPUT_BYTES:], bool(part), length + len(part)
            if length > _FLOOD_BYTES:
                time.sleep(_LOOK_S)
        elif ended:
            return True, output
        elif not is_open:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
    return process.poll() is not None and not stop.is_set(), output


def _environment() -> dict[str, str]:
    """Return the variables that a command of the site needs, without the daemon's own."""
    known = {name: os.environ[name] for name in ("HOME", "LOGNAME", "USER", "TZ") if name in os.environ}
    return known | {"PATH": _path(), "LANG": "C.UTF-8"}


def _path() -> str:
    return os.environ.get("PATH", os.defpath)
