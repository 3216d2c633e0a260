"""Times collectives between real processes of this machine, in rounds that measure each kind and size once."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sizing.tracer import answering
from sizing.tracer.refusal import Refusal

_ENOUGH_S = 0.02  # length of one measurement, so that a tick of the clock or the scheduler is a small part of it
_REPEATS_MOST = 50
_PORT_DIGITS = 5
_SILENCE_S = 120.0  # timeout for a rank that has died; gloo's default is half an hour
_FLOAT_BYTES = 4


def main(request: dict[str, Any], reply: int) -> None:
    """Answer {"times": {kind: {bytes: [seconds of each round]}}, "lacking": kinds, "torch": version}."""
    answering.answer(_measured, request, reply)


def _measured(request: dict[str, Any]) -> dict[str, Any]:
    """Fork the ranks and measure. The fork follows torch's import, a second for each rank, but precedes its threads."""
    import torch

    dist: Any = torch.distributed
    if not dist.is_available() or not dist.is_gloo_available():
        raise Refusal("this torch has no gloo; name another Python by --python", usage=True)
    ranks = int(request["ranks"])
    readable, writable = os.pipe()
    parent = os.getpid()
    children = []
    for rank in range(1, ranks):
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # none outlives rank 0
            if os.getppid() != parent:
                os._exit(4)
            try:
                port = int(os.read(readable, _PORT_DIGITS))
                _rank(rank, port, request)
            except BaseException as error:
                print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    store = dist.TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False)
    os.write(writable, f"{store.port:0{_PORT_DIGITS}d}".encode() * (ranks - 1))
    times, lacking = _rank(0, store.port, request, store)
    for child in children:
        os.waitpid(child, 0)
    return {"times": times, "lacking": lacking, "torch": str(torch.__version__)}


def _rank(rank: int, port: int, request: dict[str, Any], store: Any = None) -> tuple[dict[str, Any], list[str]]:
    """Measure as one rank; the result is the same on each."""
    import torch

    dist: Any = torch.distributed
    torch.set_num_threads(1)
    ranks = int(request["ranks"])
    if store is None:
        store = dist.TCPStore("127.0.0.1", port, ranks, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=_SILENCE_S))
    works: dict[tuple[str, int], Callable[[], None]] = {}
    repeats: dict[tuple[str, int], int] = {}
    lacking = []
    for kind in request["kinds"]:
        try:
            for wished in request["sizes"]:
                nbytes, work = _work(kind, int(wished), rank, ranks)
                work()
                works[kind, nbytes] = work
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            if not _not_there(error):
                raise
            lacking.append(kind)
            works = {key: work for key, work in works.items() if key[0] != kind}
    for key, work in works.items():
        once_s = _slowest(work, 1)
        repeats[key] = max(1, min(_REPEATS_MOST, int(_ENOUGH_S / max(once_s, 1e-9))))
    times: dict[str, dict[int, list[float]]] = {}
    for _ in range(int(request["rounds"])):
        for key, work in works.items():
            kind, nbytes = key
            times.setdefault(kind, {}).setdefault(nbytes, []).append(_slowest(work, repeats[key]))
    dist.barrier()
    dist.destroy_process_group()
    return times, lacking


def _slowest(work: Callable[[], None], repeats: int) -> float:
    """Return the seconds of one call on the rank that takes longest."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    mine = torch.tensor([(time.perf_counter() - began) / repeats], dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return float(mine.item())


def _work(kind: str, wished: int, rank: int, ranks: int) -> tuple[int, Callable[[], None]]:
    """Return the bytes of the whole tensor, a multiple of one rank's part, and a call that moves it once."""
    import torch
    import torch.distributed as dist

    part = max(1, wished // _FLOAT_BYTES // ranks)
    whole, shard = torch.zeros(part * ranks), torch.zeros(part)
    other = torch.zeros(part * ranks)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, shard),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "send_recv": lambda: _ring(whole, other, rank, ranks),
    }
    if kind not in calls:
        raise Refusal(f"there is no {kind}: {', '.join(calls)}", usage=True)
    return part * ranks * _FLOAT_BYTES, calls[kind]


def _ring(mine: Any, other: Any, rank: int, ranks: int) -> None:
    """Send to the next rank while receiving from the one before, as sendrecv_perf of nccl-tests does."""
    import torch.distributed as dist

    going = dist.isend(mine, (rank + 1) % ranks)
    coming = dist.irecv(other, (rank - 1) % ranks)
    assert going is not None
    assert coming is not None
    coming.wait()
    going.wait()


def _not_there(error: BaseException) -> bool:
    """Whether an error means that this gloo lacks a collective; every rank raises it before anything is sent."""
    said = str(error).lower()
    return isinstance(error, (NotImplementedError, AttributeError)) or any(
        words in said for words in ("does not support", "not supported", "unsupported", "no backend type")
    )
