"""Runs the user's step for real on one core of this CPU, and tells the parent how much of its time that takes."""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

from sizing.model.child import answering

_LONGEST_S = 5.0
_MOST = 10


def main(request: dict[str, Any], reply: int) -> None:
    """Answer one request on the pipe `reply`."""
    answering.answer(run, request, reply)


def run(request: dict[str, Any]) -> dict[str, Any]:
    """The median CPU time of a step on one thread, after one that warms up; what else runs here does not count."""
    import torch

    from sizing.model.child import main as child
    from sizing.model.child import surroundings

    torch.set_num_threads(1)
    surroundings.no_network()
    surroundings.no_checkpoints()
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
