"""One rank of a training step run for real, and what it held at most: the truth that traces are compared with.

    python benchmarks/sizing/real_step.py STEP.py:FUNCTION --batch B [--dp D] [--tp T] [--fsdp F] [--steps N]

Calls the function as `bft size mem` does, runs N steps and prints one line of JSON. On a CPU what counts is each
allocation and each release of torch's CPU allocator as torch.profiler records them, from before the model is made,
in bytes as asked for; the peak is that of the steps. gloo's threads let go of tensors when they come to it, so
between ranks a rank pauses for 20 ms after each wait for a collective, and for 100 ms before each forward pass of
DistributedDataParallel, which waits where Python does not see it; without that the peak is another one each time.
What does not come from torch's allocator (Python's own memory, libraries' private buffers) does not count. One
thread computes, so that kernels keep buffers for one thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_STEPS = "the steps of the case"
_PAUSE_S = 0.02


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
    return getattr(module, name)


def measured(
    make_step: Callable[..., Callable[[], Any]], batch: int, sizes: dict[str, int], steps: int
) -> dict[str, Any]:
    """The peaks of so many steps."""
    import torch

    taken = inspect.signature(make_step).parameters
    sizes = {name: size for name, size in sizes.items() if name in taken}
    torch.manual_seed(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step = make_step(batch, **sizes)
        with torch.profiler.record_function(_STEPS):
            for _ in range(steps):
                step()
    tree = profile.profiler.kineto_results.experimental_event_tree()
    return {"peak_bytes": peak_of(tree), "device": "cpu"}


def peak_of(tree: Sequence[Any]) -> int:
    """The most bytes held at once while the steps ran, of torch.profiler's tree of events.

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
        elif event.name == _STEPS:
            began_ns.append(event.start_time_ns)
    return max(total for at_ns, total in held if at_ns >= min(began_ns))


def settle() -> None:
    """Pauses after each wait for collectives, until their threads have let go of their tensors."""
    import torch
    from torch.distributed import _functional_collectives as functional

    def pausing(wait: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = wait(*args, **kwargs)
            time.sleep(_PAUSE_S)
            return found

        return call

    forward = torch.nn.parallel.DistributedDataParallel.forward

    def rested(*args: Any, **kwargs: Any) -> Any:
        time.sleep(5 * _PAUSE_S)  # it frees the first buckets here, if no thread holds them any more
        return forward(*args, **kwargs)

    torch.nn.parallel.DistributedDataParallel.forward = rested  # type: ignore[method-assign]
    torch.distributed.Work.wait = pausing(torch.distributed.Work.wait)  # type: ignore[method-assign]
    functional.wait_tensor = pausing(functional.wait_tensor)


def main(words: Sequence[str] | None = None) -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(prog="python benchmarks/sizing/real_step.py", description=__doc__.splitlines()[0])
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
        torch.distributed.init_process_group("gloo")
        settle()
    sizes = {name: getattr(options, name) for name in ("dp", "tp", "fsdp")}
    found = measured(function_of(options.step), options.batch, sizes, options.steps)
    print(json.dumps(found | {"torch": torch.__version__}), flush=True)
    if ranks > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
