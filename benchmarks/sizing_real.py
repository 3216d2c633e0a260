"""One rank of a training step run for real, and what it held at most: the truth that traces are compared with.

    python benchmarks/sizing_real.py STEP.py:FUNCTION --batch B [--dp D] [--tp T] [--fsdp F] [--steps N]

Calls the function as `bft size mem` does, runs N steps and prints one line of JSON. On a CPU what counts is each
allocation and each release of torch's CPU allocator as torch.profiler records them, from before the model is made, in
bytes as asked for: `peak_bytes` is the peak of all steps, `steady_bytes` the least peak of a step after the first.
Between ranks the two differ, since gloo's threads let go of tensors late, by chance. What does not come from torch's
allocator (Python's own memory, libraries' private buffers, what those threads take) does not count. On a GPU it is
torch.cuda.max_memory_allocated and max_memory_reserved from the first step on, and what of the device is in use in the
end (its context too; nothing else may use it). One thread computes: buffers that
kernels keep for each thread are so few as they can be.
"""

from __future__ import annotations

import argparse
import bisect
import gc
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_STEP = "a step of the case"


def function_of(step: str) -> Callable[..., Callable[[], Any]]:
    """The function that "PATH.py:FUNCTION" names, its file run as `python PATH.py` would find its imports."""
    path, _, name = step.rpartition(":")
    # This file's own folder has modules by the names of others.
    sys.path[0] = str(Path(path).resolve().parent)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)  # type: ignore[no-any-return]


def measured(
    make_step: Callable[..., Callable[[], Any]], batch: int, sizes: dict[str, int], steps: int
) -> dict[str, Any]:
    """The peaks of so many steps."""
    import torch

    taken = inspect.signature(make_step).parameters
    sizes = {name: size for name, size in sizes.items() if name in taken}
    torch.manual_seed(0)
    if torch.cuda.is_available():
        step = make_step(batch, **sizes)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        free, whole = torch.cuda.mem_get_info()
        return {
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "device_bytes": whole - free,
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "device": torch.cuda.get_device_name(),
        }
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step = make_step(batch, **sizes)
        for _ in range(steps):
            with torch.profiler.record_function(_STEP):
                step()
    tree = profile.profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    peaks = peaks_of(tree)
    return {"peak_bytes": max(peaks), "steady_bytes": min(peaks[1:] or peaks), "device": "cpu"}


def peaks_of(tree: Sequence[Any]) -> list[int]:
    """The most bytes held at once in each step, of torch.profiler's tree of events.

    Each allocation and release says how much is held with it; a release on another thread has no event of its own, but
    counts in the next one.
    """
    from torch._C._profiler import _EventType

    began_ns: list[int] = []
    held: list[tuple[int, int]] = []
    left = list(tree)
    while left:
        event = left.pop()
        left += event.children
        if event.tag == _EventType.Allocation:
            held.append((event.start_time_ns, event.extra_fields.total_allocated))
        elif event.name == _STEP:
            began_ns.append(event.start_time_ns)
    began_ns.sort()
    peaks = [0] * len(began_ns)
    for at_ns, total in held:
        number = bisect.bisect(began_ns, at_ns) - 1
        if number >= 0:
            peaks[number] = max(peaks[number], total)
    return peaks


def main(words: Sequence[str] | None = None) -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(prog="python benchmarks/sizing_real.py", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("step")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, default=3)
    for name in ("dp", "tp", "fsdp"):
        parser.add_argument(f"--{name}", type=int, default=1)
    options = parser.parse_args(words)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    ranks = options.dp * options.tp * options.fsdp
    if ranks > 1:
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    sizes = {name: getattr(options, name) for name in ("dp", "tp", "fsdp")}
    found = measured(function_of(options.step), options.batch, sizes, options.steps)
    print(json.dumps(found | {"torch": torch.__version__}), flush=True)
    if ranks > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
