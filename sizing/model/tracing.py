"""Traces a user's training step in a process of its own, which is killed whatever it does."""

from __future__ import annotations

import ast
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from sizing.errors import Untraceable, UsageError
from sizing.model import reply
from sizing.model.parallel import Parallel
from sizing.model.trace import StepTrace, Target

TIMEOUT_S = 120.0
MEMORY_BYTES = 8 * 2**30
_MOST_REPLY_BYTES = 8 * 2**20
_LAST_WORDS_BYTES = 8192
_MARK = "BFT_TRACE"
_PACKAGE = Path(__file__).resolve().parents[1]

# Runs under the user's Python: it knows our package `sizing` by its file alone, so that nothing else that lies beside
# it can take the place of the user's own packages. 3 means that there is no torch.
_BOOT = """
import sys, json, os, ctypes, resource, signal, importlib.util as util
root, parent, reply, memory, request = sys.argv[1:]
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(parent): os._exit(4)
if util.find_spec("torch") is None: os._exit(3)
os.set_inheritable(int(reply), False)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
spec = util.spec_from_file_location("sizing", root + "/__init__.py", submodule_search_locations=[root])
sys.modules["sizing"] = module = util.module_from_spec(spec)
spec.loader.exec_module(module)
from sizing.model.child.main import main
main(json.loads(request), int(reply))
"""


def takes(step: str, python: str = "") -> frozenset[str]:
    """Which of the keywords dp, tp and fsdp a step's function takes; read, not run. Raises UsageError."""
    path, name = _parts(step)
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} is no Python: {error}") from None
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            known = {arg.arg for arg in (*node.args.args[1:], *node.args.kwonlyargs)}
            return frozenset({"dp", "tp", "fsdp"} if node.args.kwarg else {"dp", "tp", "fsdp"} & known)
    return frozenset()


def trace(
    step: str,
    batch: int,
    parallel: Parallel,
    *,
    target: Target = "cuda",
    python: str = "",
    timeout_s: float = TIMEOUT_S,
    memory_bytes: int | None = MEMORY_BYTES,
    need_parallel: bool = True,
) -> StepTrace:
    """The trace of one rank's step; `step` is "PATH.py:FUNCTION", `batch` the samples of one rank.

    Raises Untraceable where the step cannot be followed, UsageError where there is no such file, function or Python.
    """
    if batch < 1:
        raise UsageError(f"a batch of {batch}: at least 1")
    path, name = _parts(step)
    known = takes(step, python)
    for keyword, size in (("tp", parallel.tp), ("fsdp", parallel.fsdp)):
        if need_parallel and size > 1 and keyword not in known:
            raise UsageError(
                f"{name} in {path.name} does not spread its model over {keyword}={size}: "
                f"write def {name}(batch_size, *, {keyword}=1) and use {keyword} there"
            )
    request = {
        "path": str(path),
        "function": name,
        "batch": batch,
        "dp": parallel.dp,
        "tp": parallel.tp,
        "fsdp": parallel.fsdp,
        "takes": sorted(known),
        "target": target,
    }
    for candidate in _pythons(python):
        began = time.monotonic()
        data, code, words = _run(candidate, request, timeout_s, memory_bytes or 2**62)
        if data:
            return reply.read(data, batch, parallel, target, time.monotonic() - began)
        if code != 3:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            last = "".join(f": {line[:200]}" for line in words.strip().splitlines()[-1:])
            raise Untraceable(f"{path.name}: the traced process {how} before it was done{last}")
    raise UsageError("no Python with torch was found: name one with --python /path/to/python")


def _parts(step: str) -> tuple[Path, str]:
    path, _, name = step.rpartition(":")
    if not path or not name.isidentifier():
        raise UsageError(f"{step}: write FILE.py:FUNCTION")
    if not Path(path).is_file():
        raise UsageError(f"{path}: no such file")
    return Path(path).resolve(), name


def _pythons(python: str) -> list[str]:
    if python:
        return [python]
    return list(dict.fromkeys(filter(None, [shutil.which("python3"), sys.executable])))


def _run(python: str, request: dict[str, object], timeout_s: float, memory_bytes: int) -> tuple[bytes, int, str]:
    """The child's reply (b"" for none), how it ended, and the last that it said on its error output."""
    mine, its = os.pipe()
    arguments = [str(_PACKAGE), str(os.getpid()), str(its), str(memory_bytes), json.dumps(request)]
    mark = f"{os.getpid()}-{os.urandom(8).hex()}"
    env = {
        **os.environ,
        _MARK: mark,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if request["dp"] != 1 or request["tp"] != 1 or request["fsdp"] != 1:
        size = int(str(request["dp"])) * int(str(request["tp"])) * int(str(request["fsdp"]))
        env |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    try:
        child = subprocess.Popen(
            [python, "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[its],
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        os.close(mine)
        raise UsageError(f"{python} cannot be started: {error.strerror}; name another with --python") from None
    finally:
        os.close(its)
    assert child.stderr is not None
    said, words = bytearray(), bytearray()
    ends = time.monotonic() + timeout_s
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(mine, selectors.EVENT_READ)
            selector.register(child.stderr, selectors.EVENT_READ)
            while mine in {key.fd for key in selector.get_map().values()}:
                left_s = ends - time.monotonic()
                if left_s <= 0:
                    raise Untraceable(f"no end after {timeout_s:g} s: a shorter step, or a longer --timeout")
                for key, _ in selector.select(left_s):
                    chunk = os.read(key.fd, 65536)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.fd == mine:
                        said += chunk
                        if len(said) > _MOST_REPLY_BYTES:
                            raise Untraceable("the traced process answered more than a trace can be")
                    else:
                        words = (words + chunk)[-_LAST_WORDS_BYTES:]
                if b"\n" in said:
                    return bytes(said[: said.index(b"\n")]), 0, ""
        return b"", child.wait(max(0.1, ends - time.monotonic())), words.decode(errors="replace")
    except subprocess.TimeoutExpired:
        raise Untraceable(f"no end after {timeout_s:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        _end_marked(f"{_MARK}={mark}".encode())
        child.stderr.close()
        os.close(mine)


def _end_marked(mark: bytes) -> None:
    """Kill what a traced process started in sessions of their own, known by the environment that they have from it."""
    for _ in range(10):  # one of them may have started another meanwhile
        killed = False
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if entry.stat().st_uid == os.getuid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed = True
        if not killed:
            return
