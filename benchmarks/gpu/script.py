"""The script that `benchmarks.gpu.training` trains; what it is to do is in $BFT_GPU_BENCH, what it did in a file there.

It trains nothing: a step is one sum over all workers of a few megabytes on the device.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GB = 10**9
_PARTS = 16
"""A state is a dictionary of so many tensors, as a model's is."""

_REPEATS = 3
_STEP_S = 0.02


def tell(told: dict[str, Any], **what: Any) -> None:
    """One line of the record, whole also where several workers write."""
    descriptor = os.open(told["record"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, json.dumps({"at_s": time.time(), "pid": os.getpid(), **what}).encode() + b"\n")
    os.close(descriptor)


def train() -> None:
    """Trains until it is ended."""
    import torch
    import torch.distributed as dist

    import elastic

    told = json.loads(os.environ["BFT_GPU_BENCH"])
    rank = int(os.environ["RANK"])
    on_gpu = told["device"] == "cuda"
    several = on_gpu and torch.cuda.device_count() > 1
    device = f"cuda:{rank % torch.cuda.device_count()}" if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if several else "gloo")
    began_s = time.perf_counter()
    saved = elastic.load()
    if saved is not None and "state" in saved:
        saved["state"] = {name: part.to(device) for name, part in saved["state"].items()}
        _wait(on_gpu)
        tell(told, did="load", took_s=time.perf_counter() - began_s)
    del saved
    hold(told["gb_on_device"], device, pinned=False)
    hold(told["gb_on_host"], "cpu", pinned=on_gpu and told["pinned"])
    value = torch.ones(1 << 20, device=device)
    if told["state_gb"] and rank == 0:
        tell(told, did="copies", **copies(told, device))
    state = parts_of(told["state_gb"], device)
    step = 0
    while True:
        dist.all_reduce(value)
        _wait(on_gpu)
        step += 1
        tell(told, did="step", step=step, rank=rank, size=dist.get_world_size(), backend=dist.get_backend())
        time.sleep(_STEP_S)
        if elastic.step(save_every=told["save_every"]):
            began_s = time.perf_counter()
            elastic.save({"state": state} if state else {})
            tell(told, did="save", step=step, took_s=time.perf_counter() - began_s)


_held: list[Any] = []


def hold(gb: float, device: str, pinned: bool) -> None:
    """Takes so many gigabytes and keeps them, every page of them written to."""
    import torch

    left = int(gb * GB)
    while left > 0:
        # torch rounds what it pins up to a power of two.
        part = min(left, 1 << 30)
        _held.append(torch.empty(part, dtype=torch.uint8, device=device, pin_memory=pinned).fill_(1))
        left -= part


def parts_of(gb: float, device: str) -> dict[str, Any]:
    """A state of so many gigabytes; {} for none."""
    import torch

    return {str(n): torch.rand(int(gb * GB) // 4 // _PARTS, device=device) for n in range(_PARTS)} if gb else {}


def copies(told: dict[str, Any], device: str) -> dict[str, float]:
    """What copying and writing such a state takes without bftd, in seconds: what saving is to be compared with."""
    import torch

    on_gpu = told["device"] == "cuda"
    state = parts_of(told["state_gb"], device)
    began_s = time.perf_counter()
    hosts = {name: torch.empty(part.shape, pin_memory=on_gpu) for name, part in state.items()}
    for host in hosts.values():
        host.zero_()  # the memory is there from here on
    found = {"allocate_s": time.perf_counter() - began_s}

    def copy() -> None:
        for name, part in state.items():
            hosts[name].copy_(part, non_blocking=True)

    def back() -> None:
        for name, part in state.items():
            part.copy_(hosts[name], non_blocking=True)

    path = Path(told["record"]).parent / "plain.pt"

    def write() -> None:
        with path.open("wb") as file:
            torch.save(hosts, file)
            file.flush()
            os.fsync(file.fileno())

    for name, do in (("copy_s", copy), ("back_s", back), ("write_s", write)):
        found[name] = statistics.median(_timed(do, on_gpu) for _ in range(_REPEATS))
    found["read_s"] = _timed(lambda: torch.load(path), on_gpu)
    path.unlink()
    return found


def _timed(do: Callable[[], object], on_gpu: bool) -> float:
    _wait(on_gpu)
    began_s = time.perf_counter()
    do()
    _wait(on_gpu)
    return time.perf_counter() - began_s


def _wait(on_gpu: bool) -> None:
    if on_gpu:
        import torch

        torch.cuda.synchronize()


if __name__ == "__main__":
    train()
