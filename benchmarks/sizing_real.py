"""One rank of a training step run for real, and what it held at most: the truth that traces are compared with.

    python benchmarks/sizing_real.py STEP.py:FUNCTION --batch B [--dp D] [--tp T] [--fsdp F] [--steps N]

Calls the function as `bft size mem` does, runs N steps and prints one line of JSON. On a CPU what counts is each
allocation and each release of torch's CPU allocator as torch.profiler records them, from before the model is made; the
peak is that of the steps, in bytes as asked for. What does not come from torch's allocator (Python's own memory,
libraries' private buffers) or from the threads of a collective's transport does not count. On a GPU it is
torch.cuda.max_memory_allocated and max_memory_reserved from the first step on. One thread computes: buffers that
kernels keep for each thread are so few as they can be.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_STEPS = "the steps"


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
        return {
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "device": torch.cuda.get_device_name(),
        }
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step = make_step(batch, **sizes)
        with torch.profiler.record_function(_STEPS):
            for _ in range(steps):
                step()
    return {"peak_bytes": peak_of(profile.profiler.kineto_results.events()), "device": "cpu"}  # type: ignore[union-attr]


def peak_of(events: Sequence[Any]) -> int:
    """The most bytes held at once while the steps ran, of torch.profiler's raw events."""
    (steps,) = (event for event in events if event.name() == _STEPS)
    held = most = 0
    for event in sorted((each for each in events if each.name() == "[memory]"), key=lambda each: each.start_ns()):
        held += event.nbytes()
        if event.start_ns() >= steps.start_ns():
            most = max(most, held)
    return most


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
