"""Runs the user's step for real, on one core of this CPU or on this GPU, and reports time and memory to the parent."""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

from sizing.tracer import answering
from sizing.tracer.refusal import Refusal
from sizing.tracer.runs.rounds import interval

_LONGEST_S = 5.0
_MOST = 10
_CONTEXT_BYTES = 2 * 2**30  # the driver's part of a process is less than half of that
_WARM_UPS, _LEAST, _MOST_ON_GPU, _LONGEST_ON_GPU_S = 3, 5, 100, 2.0


def main(request: dict[str, Any], reply: int) -> None:
    """Answer one request on the pipe `reply`."""
    answering.answer(run, request, reply)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Measure a step on the request's device."""
    return _on_gpu(request) if request.get("target") == "cuda" else _on_cpu(request)


def _on_gpu(request: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds of a step by the GPU's own events, and the most memory since the first step.

    With `limit_bytes`, steps may use only so much of the GPU's memory, including the driver's part; if that is too
    little, the answer is `too_large`. The time is measured without that limit. Raises Refusal if something else uses
    the GPU.
    """
    import torch

    from sizing.tracer import main as child
    from sizing.tracer.runs.measure import CallClock

    if not torch.cuda.is_available():
        raise Refusal("torch sees no GPU here: go to a node that has one, or name a partition with -p", True)
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")  # makes the driver take its own memory
    free, whole = torch.cuda.mem_get_info()
    if (others := whole - free - torch.cuda.memory_reserved()) > _CONTEXT_BYTES:
        raise Refusal(f"{others / 2**30:.1f} GiB of the GPU are in use already: let nothing else run on it", True)
    limit_bytes = request["limit_bytes"] or whole
    torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, (limit_bytes - others) / whole)))
    try:
        step = child.made(request)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(_WARM_UPS):
            child.do(step)
        free, whole = torch.cuda.mem_get_info()
        if whole - free > limit_bytes:
            return {"too_large": True}
        memory = {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "in_use_bytes": whole - free,
            "memory_bytes": whole,
        }
        torch.cuda.set_per_process_memory_fraction(1.0)
        child.do(step)
        clock = CallClock("cuda", 1)
        taken_s: list[float] = []
        while len(taken_s) < _LEAST or (len(taken_s) < _MOST_ON_GPU and sum(taken_s) < _LONGEST_ON_GPU_S):
            taken_s.append(clock.of(lambda: child.do(step)))
    except torch.cuda.OutOfMemoryError:
        return {"too_large": True}
    where = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    return {"step_s": interval(taken_s), **memory, **where}


def _on_cpu(request: dict[str, Any]) -> dict[str, Any]:
    """Return the median CPU time of a step on one thread after a warm-up; other processes' time does not count."""
    import torch

    from sizing.tracer import main as child
    from sizing.tracer.device import isolation

    torch.set_num_threads(1)
    isolation.no_network()
    isolation.no_checkpoints()
    step = child.made({**request, "takes": []})
    child.do(step)
    gc.collect()
    taken_s: list[float] = []
    while len(taken_s) < _MOST and sum(taken_s) < _LONGEST_S:
        began_s = time.process_time()
        child.do(step)
        taken_s.append(time.process_time() - began_s)
    trained = {id(each): each.numel() for each in gc.get_objects() if isinstance(each, torch.nn.Parameter)}
    return {
        "parameters": sum(trained.values()),
        "core_s": statistics.median(taken_s),
        "steps": len(taken_s),
        "torch": torch.__version__,
    }
