"""Traces a user's training step in a child process, which is always killed."""

from __future__ import annotations

import ast
import time

from sizing.base.errors import Untraceable, UsageError
from sizing.base.parallel import Parallel
from sizing.child import launch, trace_cache
from sizing.model import reply
from sizing.model.trace import StepTrace, Target

TIMEOUT_S = 120.0
MEMORY_BYTES = 8 * 2**30
_ENTRY = "sizing.tracer.main"


def takes(step: str, python: str = "") -> frozenset[str]:
    """Return the keywords among dp, tp, fsdp and stages that a step's function takes.

    The file is parsed, not run. Raises UsageError. A function with `stages` has a script that can run as a pipeline;
    a trace does not pass it.
    """
    path, name = launch.parts(step)
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} is no Python: {error}") from None
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            known = {arg.arg for arg in (*node.args.args[1:], *node.args.kwonlyargs)}
            spread = {"dp", "tp", "fsdp"}
            return frozenset((spread if node.args.kwarg else spread & known) | ({"stages"} & known))
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
    """Trace one rank's step; `step` is "PATH.py:FUNCTION", `batch` the samples of one rank.

    The trace is cached until something that it depended on changes.
    Raises Untraceable if the step cannot be traced, UsageError if there is no such file, function or Python.
    """
    if batch < 1:
        raise UsageError(f"a batch of {batch}: at least 1")
    path, name = launch.parts(step)
    known = takes(step, python) - {"stages"}
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
    for candidate in launch.pythons(python):
        began = time.monotonic()
        answer = trace_cache.CachedAnswer(candidate, request, _environment(request))
        data, code, words = answer.read() or b"", 0, ""
        if not data:
            data, code, words = _run(candidate, request, timeout_s, memory_bytes or launch.NO_LIMIT_BYTES)
            answer.write(data)
        if data:
            return reply.read(data, batch, parallel, target, time.monotonic() - began)
        if code != launch.NO_TORCH:
            raise Untraceable(f"{path.name}: {launch.epitaph(code, words)}")
    raise UsageError("no Python with torch was found: name one with --python /path/to/python")


def _run(python: str, request: dict[str, object], timeout_s: float, memory_bytes: int) -> tuple[bytes, int, str]:
    """Run the child; return its reply (b"" for none), its exit code, and the end of its error output."""
    return launch.ended(python, _ENTRY, request, launch.ChildLimits(timeout_s, memory_bytes), _environment(request))


def _environment(request: dict[str, object]) -> dict[str, str]:
    size = int(str(request["dp"])) * int(str(request["tp"])) * int(str(request["fsdp"]))
    env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return env | (launch.ranks(size) if size != 1 else {})
