"""Profiles shards of a model on this process's device; writes a line of JSON after each, and one at the end."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from sizing.tracer import answering
from sizing.tracer.refusal import Refusal


def run(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Profile the request's shards in order and `tell` each result; one that does not fit in memory is `unfit`."""
    import torch

    from sizing.tracer.graphs import graphs, models
    from sizing.tracer.ranks import fake_collectives
    from sizing.tracer.runs import measure

    graphs.set_up(request["tp"])
    device = _device(request["device"])
    if device == "cpu" and request["limit_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (request["limit_bytes"], request["limit_bytes"]))
    torch.set_num_threads(request["threads"])
    torch.set_flush_denormal(True)  # random inputs and weights lead to slow denormal numbers, unlike real training
    torch.manual_seed(0)
    measure.autocast(request["precision"], device)
    measure.optimizer_of(request["optimizer"], [torch.zeros(1, requires_grad=True)])
    models.join(request["tp"])
    fake_collectives.alone()
    name = torch.cuda.get_device_name() if device != "cpu" else "cpu"
    where = {"device": name, "torch": torch.__version__}
    for shard, make in _slices(request, device):
        try:
            piece = make()
            answer = measure.measured(piece, device, request["threads"], request["rounds"], request["optimizer"])
            del piece
        except (MemoryError, RuntimeError) as error:
            if not _lacks_memory(error):
                raise
            answer = {"unfit": (str(error).splitlines() or ["no memory"])[0][:200]}
            del error
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()
        tell({"shard": shard, **where, "files": list(_files(request)), **answer})
    return where


def _slices(request: dict[str, Any], device: str) -> Iterator[tuple[list[int], Callable[[], Any]]]:
    from sizing.tracer.graphs import stage_module

    if "sizes" in request:
        for shard in request["shards"]:
            yield shard, partial(stage_module.of_chain, request["sizes"], tuple(shard), device, request["precision"])
        return
    from sizing.tracer.graphs import blocks

    base = request["graph"]["operators"]
    cutter, made_for = None, 0
    for shard in request["shards"]:
        first, last, batch, _ = shard
        if last >= len(base):
            raise Refusal(f"operators {first} to {last} of {len(base)}: no stage of this model", True)
        if batch != made_for:
            cutter, made_for = blocks.origin_of(request)({**request, "batch": batch}, batch, base), batch
        yield shard, partial(_cut, cutter, first, last, device)


def _cut(cutter: Any, first: int, last: int, device: str) -> Any:
    piece = cutter.cut(first, last, device)
    piece.exchanged = cutter.exchanged(first, last)
    return piece


def _device(asked: str) -> str:
    import torch

    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise Refusal(
            "no GPU is seen here: take --device cpu (of bft size split --type cpu), or a node that has GPUs", True
        )
    return "cuda" if there and asked != "cpu" else "cpu"


def _lacks_memory(error: BaseException) -> bool:
    kind, words = type(error).__name__, str(error)
    return isinstance(error, MemoryError) or kind == "OutOfMemoryError" or "allocate memory" in words


def _files(request: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the path (relative to the user's file) and SHA-256 of that file and of modules from its folder."""
    if "path" not in request:
        return
    folder = os.path.dirname(os.path.realpath(request["path"]))
    own = {request["path"]}
    for module in list(sys.modules.values()):
        place = getattr(module, "__file__", None)
        if isinstance(place, str) and os.path.realpath(place).startswith(folder + os.sep):
            own.add(place)
    for place in sorted({os.path.realpath(each) for each in own}):
        if "site-packages" in place.split(os.sep):
            continue
        try:
            with open(place, "rb") as file:
                yield [os.path.relpath(place, folder), hashlib.sha256(file.read()).hexdigest()]
        except OSError:
            continue


def main(request: dict[str, Any], reply: int) -> None:
    """Answer one request on the pipe `reply`; each shard's result is a line that begins with +, before the answer."""

    def tell(found: dict[str, Any]) -> None:
        data = b"+" + json.dumps(found).encode() + b"\n"
        while data:
            data = data[os.write(reply, data) :]

    answering.answer(lambda asked: run(asked, tell), request, reply)
