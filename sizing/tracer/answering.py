"""The answer of a child process: one line of JSON on a pipe, whether it succeeds or fails."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from typing import Any

from sizing.tracer.refusal import Refusal

_OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def reason_of(error: BaseException, path: str) -> str:
    """Return the message of an error, with the line of the user's file that led to it."""
    lines = str(error).strip().splitlines() or [""]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    place = f"{os.path.basename(path)}:{frames[-1].lineno}: " if frames else ""
    if isinstance(error, Refusal):
        return f"{place}{error}"[:400]
    kind = type(error).__name__
    if isinstance(error, KeyError) and error.args[:1] and error.args[0] in _OF_TORCHRUN:
        return f"{place}{error.args[0]} is set where there are more GPUs than one; os.environ.get has a default"[:400]
    if any(frame.filename.endswith("flex_attention.py") for frame in traceback.extract_tb(error.__traceback__)):
        return (
            f"{place}flex_attention cannot be traced: write F.scaled_dot_product_attention, which takes as much memory"
        )
    if kind in ("DataDependentOutputException", "DynamicOutputShapeException"):
        return f"{place}the result of {lines[0]} depends on what tensors hold, which a trace does not know"[:400]
    if kind == "GuardOnDataDependentSymNode":
        return f"{place}what is done, or a size, depends on what tensors hold"[:400]
    if isinstance(error, MemoryError) or "allocate memory" in lines[0]:
        return f"{place}the traced process took more memory than it may have: make tensors with torch, not arrays"
    return f"{place}{kind}{lines[0] and ': '}{lines[0]}"[:400]


def answer(run: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any], reply: int) -> None:
    """Write what `run(request)` returns, or why it cannot, to the pipe `reply`, and end this process.

    A reason is {"refused": one line, "usage": whether the request itself is wrong}; `request["path"]` is the user's
    file, and the reason names the line in it that led to the error.
    """
    began = time.perf_counter()
    path = str(request.get("path", ""))
    try:
        answer = run(request)
    except Refusal as error:
        answer = {"refused": reason_of(error, path), "usage": error.usage}
    except BaseException as error:
        answer = {"refused": reason_of(error, path), "usage": False}
    answer["trace_s"] = time.perf_counter() - began
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[os.write(reply, data) :]
    os._exit(0)
