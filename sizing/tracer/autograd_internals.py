"""Uses of the private parts of torch's autograd engine and profiler."""

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
    """Return the number of the backward function that is running, if any."""
    current = torch._C._current_autograd_node()
    return None if current is None else current._sequence_nr()


def is_engines(tensor: Any) -> bool:
    """Whether only torch's engine holds a tensor given to a mode, and no Python code in a backward made the call."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name in ("__torch_dispatch__", "_called", "inner"):
        frame = frame.f_back
    if frame.f_code.co_name != "_engine_run_backward":
        return False
    # the tensor: its buffer, its Python object, the call's stack twice; the storage: its tensor and its Python object
    return tensor._use_count() == 4 and torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == 2


def allocations(profile: Any) -> list[int]:
    """Return the bytes of each allocation that torch.profiler has recorded, negative for releases, in order."""
    from torch._C._profiler import _EventType

    found: list[tuple[int, int, int]] = []
    events = list(profile.profiler.kineto_results.experimental_event_tree())
    for event in events:  # the list grows while it is read
        events += event.children
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, len(found), event.extra_fields.alloc_size))
    return [size for _, _, size in sorted(found)]
