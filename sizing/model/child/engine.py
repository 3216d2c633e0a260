"""What is taken from the private parts of torch's autograd engine and of its profiler."""

from __future__ import annotations

import sys
from typing import Any

import torch


def watch_backward(tracker: Any) -> None:
    """Tell the tracker when a backward pass begins and ends."""
    autograd: Any = torch.autograd
    usual = autograd.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        tracker.begin_backward()
        try:
            return usual(*args, **kwargs)
        finally:
            tracker.end_backward()

    autograd.backward = backward


def node() -> int | None:
    """The number of the backward function that runs."""
    current = torch._C._current_autograd_node()
    return None if current is None else current._sequence_nr()


def is_engines(tensor: Any) -> bool:
    """Whether a tensor that a mode was handed is torch's engine's alone, and no Python code in a backward asked."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name in ("__torch_dispatch__", "_called", "inner"):
        frame = frame.f_back
    if frame.f_code.co_name != "_engine_run_backward":
        return False
    # its buffer, its Python object, the call's stack twice; the storage's tensor and Python object
    return tensor._use_count() == 4 and torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == 2


def allocations(profile: Any) -> list[int]:
    """The bytes of each allocation that torch.profiler has recorded, and below 0 of each release, in their order."""
    from torch._C._profiler import _EventType

    found: list[tuple[int, int, int]] = []
    events = list(profile.profiler.kineto_results.experimental_event_tree())
    for event in events:  # and those that are added
        events += event.children
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, len(found), event.extra_fields.alloc_size))
    return [size for _, _, size in sorted(found)]
