"""Runs our code together with a user's in a child process under their Python; the child is always killed."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sizing.base.errors import Untraceable, UsageError
from sizing.tracer.dependencies import MARK

NO_LIMIT_BYTES = 2**62
NO_TORCH = 3  # the exit status of a child whose Python has no torch
_LONGEST_S = 10**6
_LAST_WORDS_BYTES = 8192
_PACKAGE = Path(__file__).resolve().parents[1]
CHILD = _PACKAGE / "tracer"
"""The folder of the code that runs under a user's Python."""

# Runs under the user's Python. It loads our package `sizing` by its file alone, so that nothing else in our
# site-packages can shadow the user's own packages.
_BOOT = """
import sys, json, os, ctypes, resource, signal, importlib, importlib.util as util
root, parent, reply, memory, entry, request = sys.argv[1:]
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(parent): os._exit(4)
if util.find_spec("torch") is None: os._exit(3)
os.set_inheritable(int(reply), False)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
spec = util.spec_from_file_location("sizing", root + "/__init__.py", submodule_search_locations=[root])
sys.modules["sizing"] = module = util.module_from_spec(spec)
spec.loader.exec_module(module)
importlib.import_module(entry).main(json.loads(request), int(reply))
"""


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """The limits of a child: its time, its data memory and the length of its reply.

    Raises UsageError for a time that is not positive or too long.
    """

    timeout_s: float
    memory_bytes: int = NO_LIMIT_BYTES
    reply_bytes: int = 8 * 2**20

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= _LONGEST_S:
            raise UsageError(f"--timeout {self.timeout_s:g}: seconds, more than 0 and at most {_LONGEST_S:g}")


def run(
    entry: str,
    request: Mapping[str, Any],
    *,
    python: str = "",
    timeout_s: float,
    memory_bytes: int | None = None,
    env: Mapping[str, str] | None = None,
    what: str = "the step",
    heard: Callable[[bytes], None] | None = None,
) -> bytes:
    """Run `main(request, reply)` of the module `entry` (in sizing.tracer) and return its reply, one line of JSON.

    It runs under `python`, else under the first Python that has torch: python3 on PATH, then this one. `env` is added
    to the child's environment; threads and devices are left to the caller. `heard` is called with each line that
    begins with + and precedes the answer, without the +. Raises Untraceable if the child ends without an answer (`what`
    names the culprit in the message), UsageError if no Python has torch.
    """
    limits = ChildLimits(timeout_s, NO_LIMIT_BYTES if memory_bytes is None else memory_bytes)
    for candidate in pythons(python):
        data, code, words = ended(candidate, entry, request, limits, env or {}, heard)
        if data:
            return data
        if code != NO_TORCH:
            raise Untraceable(f"{what}: {epitaph(code, words)}")
    raise UsageError("no Python with torch was found: name one with --python /path/to/python")


def parts(step: str) -> tuple[Path, str]:
    """Split "PATH.py:FUNCTION" into the file and the function; raises UsageError."""
    path, _, name = step.rpartition(":")
    if not path or not name.isidentifier():
        raise UsageError(f"{step}: write FILE.py:FUNCTION")
    if not Path(path).is_file():
        raise UsageError(f"{path}: no such file")
    return Path(path).resolve(), name


def ranks(size: int) -> dict[str, str]:
    """Return the environment that torchrun gives rank 0 of `size` ranks on one node."""
    env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    return env | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def pythons(python: str) -> list[str]:
    """Return the Pythons to try: the given one, else python3 on PATH and then this one."""
    if python:
        return [python]
    return list(dict.fromkeys(filter(None, [shutil.which("python3"), sys.executable])))


def epitaph(code: int, words: str) -> str:
    """Describe the end of a child that gave no answer."""
    how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    last = "".join(f": {line[:200]}" for line in words.strip().splitlines()[-1:])
    return f"the traced process {how} before it was done{last}"


def ended(
    python: str,
    entry: str,
    request: Mapping[str, Any],
    limits: ChildLimits,
    env: Mapping[str, str],
    heard: Callable[[bytes], None] | None = None,
) -> tuple[bytes, int, str]:
    """Run a child; return its reply (b"" for none), its exit code, and the end of its error output.

    The child is killed at its timeout and when this process ends, together with the processes that it started. Raises
    Untraceable if it takes too long or its reply is too long, UsageError if the Python cannot be started.
    """
    mine, its = os.pipe()
    arguments = [str(_PACKAGE), str(os.getpid()), str(its), str(limits.memory_bytes), entry, json.dumps(dict(request))]
    mark = f"{os.getpid()}-{os.urandom(8).hex()}"
    try:
        child = subprocess.Popen(
            [python, "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[its],
            env={**os.environ, **env, MARK: mark},
            start_new_session=True,
        )
    except OSError as error:
        os.close(mine)
        raise UsageError(f"{python} cannot be started: {error.strerror}; name another with --python") from None
    finally:
        os.close(its)
    assert child.stderr is not None
    said, words = bytearray(), bytearray()
    ends = time.monotonic() + limits.timeout_s
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(mine, selectors.EVENT_READ)
            selector.register(child.stderr, selectors.EVENT_READ)
            while mine in {key.fd for key in selector.get_map().values()}:
                left_s = ends - time.monotonic()
                if left_s <= 0:
                    raise Untraceable(f"no end after {limits.timeout_s:g} s: a shorter step, or a longer --timeout")
                for key, _ in selector.select(left_s):
                    chunk = os.read(key.fd, 65536)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.fd == mine:
                        said += chunk
                        if len(said) > limits.reply_bytes:
                            raise Untraceable("the traced process answered more than a trace can be")
                    else:
                        words = (words + chunk)[-_LAST_WORDS_BYTES:]
                while (end := said.find(b"\n")) >= 0:
                    line = bytes(said[:end])
                    if heard is None or not line.startswith(b"+"):
                        return line, 0, ""
                    del said[: end + 1]
                    heard(line[1:])
        return b"", child.wait(max(0.1, ends - time.monotonic())), words.decode(errors="replace")
    except subprocess.TimeoutExpired:
        raise Untraceable(f"no end after {limits.timeout_s:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        end_marked(f"{MARK}={mark}".encode())
        child.stderr.close()
        os.close(mine)


def end_marked(mark: bytes) -> None:
    """Kill processes that a child started in other sessions, found by the mark in their inherited environment."""
    for _ in range(10):  # one of them may have started another meanwhile
        killed = False
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if entry.stat().st_uid == os.getuid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed = True
        if not killed:
            return
