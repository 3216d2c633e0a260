"""One rank of benchmarks.cells.accuracy: profiles shards alone, measures the network, and runs plans, round by round.

    python -m benchmarks.cells.rank RANK WORLD FOLDER CASE PLANS ROUNDS [plain]

All ranks go through the same list of parts in the same order, in one process each, on a core each; before each part
they wait for each other. So whatever else the machine does strikes profile and plan alike. It writes what it measured
to FOLDER/RANK.json: seconds of each part in each round. With `plain` it runs the plans alone, as a job would.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.cells import cases
from benchmarks.cells.cases import Case, Plan
from benchmarks.cells.cases.models import Ranks, batch_of
from sizing.tracer.runs.measure import Pass, Slice, optimizer_of

OPTIMIZER = "adamw"
SIZES = tuple(4**at * 1024 for at in range(9))
"""Of the communication table: 1 KiB to 64 MiB, whatever the cases send."""
WARM_UPS = 2
_BUCKET = 25 * 2**20 // 4


class Groups:
    """The process groups of all plans; every rank makes all of them, in the same order."""

    def __init__(self, world: int) -> None:
        self.made: dict[tuple[int, ...], Any] = {}
        self.world = world

    def of(self, members: list[int]) -> Any:
        key = tuple(members)
        if key not in self.made:
            self.made[key] = dist.new_group(members)
        return self.made[key]


class Real:
    """One rank's part of a plan, run for real: GPipe over stages, DDP or buckets over replicas, sums over tensor ranks.

    Ranks are stages outermost, then replicas, then tensor-parallel ranks.
    """

    def __init__(self, case: Case, plan: Plan, rank: int, groups: Groups) -> None:
        inside = plan.dp * plan.tp
        self.plan, self.rank, self.inside = plan, rank, inside
        self.stage, own = divmod(rank, inside)
        stages = len(plan.cuts) + 1
        self.first, self.last = self.stage == 0, self.stage == stages - 1
        self.data: Any = None
        tensor: Any = None
        for stage in range(stages):
            base = stage * inside
            for replica in range(plan.dp):
                members = [base + replica * plan.tp + t for t in range(plan.tp)]
                group = groups.of(members) if plan.tp > 1 else None
                tensor = group if rank in members else tensor
            for t in range(plan.tp):
                members = [base + replica * plan.tp + t for replica in range(plan.dp)]
                group = groups.of(members) if plan.dp > 1 else None
                self.data = group if rank in members else self.data
        del own
        chain = cases.blocks(case, Ranks(plan.tp, tensor))
        first, end = cases.cut(case, len(chain), plan)[self.stage]
        self.module: Any = nn.Sequential(*chain[first : end + 1])
        self.samples = case.batch // plan.micro_batches // plan.dp
        self.x = batch_of(case.family, case.sizes, self.samples)
        self.replicated = plan.dp > 1 and stages == 1
        if self.replicated:
            self.module = DistributedDataParallel(self.module, process_group=self.data)
        self.optimizer = optimizer_of(OPTIMIZER, list(self.module.parameters()))
        self.into: Any = None
        self.onward: Any = None
        if stages > 1:
            shapes = boundary_shapes(case, plan, self.samples)
            self.into = None if self.first else shapes[self.stage - 1]
            self.onward = None if self.last else shapes[self.stage]

    def step(self) -> None:
        """One iteration of the whole global batch."""
        self.optimizer.zero_grad(set_to_none=True)
        if len(self.plan.cuts):
            self.pipeline()
        else:
            for micro in range(self.plan.micro_batches):
                if self.replicated and micro < self.plan.micro_batches - 1:
                    with self.module.no_sync():
                        self.module(self.x).backward()
                else:
                    self.module(self.x).backward()
        if self.data is not None and not self.replicated:
            self.sum_gradients()
        self.optimizer.step()

    def pipeline(self) -> None:
        """All forward passes, then all backward passes (GPipe)."""
        held, sent = [], []
        for _ in range(self.plan.micro_batches):
            x = self.x
            if not self.first:
                x = torch.empty(self.into)
                dist.recv(x, self.rank - self.inside)
                x.requires_grad_()
            out = self.module(x)
            held.append((x, out))
            if not self.last:
                sent.append(dist.isend(out.detach(), self.rank + self.inside))
        for x, out in held:
            if self.last:
                out.backward()
            else:
                grad = torch.empty(self.onward)
                dist.recv(grad, self.rank + self.inside)
                out.backward(grad)
            if not self.first:
                assert x.grad is not None
                sent.append(dist.isend(x.grad, self.rank - self.inside))
        for each in filter(None, sent):
            each.wait()

    def sum_gradients(self) -> None:
        """Over replicas, in buckets of 25 MiB as DDP has them."""
        flat = torch.cat([each.grad.flatten() for each in self.module.parameters()])
        for part in flat.split(_BUCKET):
            dist.all_reduce(part, group=self.data)
        at = 0
        for each in self.module.parameters():
            each.grad.copy_(flat[at : at + each.numel()].view_as(each)).div_(self.plan.dp)
            at += each.numel()


def boundary_shapes(case: Case, plan: Plan, samples: int) -> list[torch.Size]:
    """Of what goes from each stage to the next, for so many samples."""
    chain = cases.blocks(case, Ranks())
    x, found = batch_of(case.family, case.sizes, samples), []
    with torch.no_grad():
        for first, end in cases.cut(case, len(chain), plan)[:-1]:
            x = nn.Sequential(*chain[first : end + 1])(x)
            found.append(x.shape)
    return found


class Alone:
    """A shard as one rank runs it alone: what the estimate is made of."""

    def __init__(self, case: Case, shard: tuple[int, int, int, int]) -> None:
        first, last, samples, tp = shard
        self.ranks = Ranks(tp)
        whole = cases.blocks(case, Ranks())
        x = batch_of(case.family, case.sizes, samples)
        with torch.no_grad():
            for block in whole[:first]:
                x = block(x)
            out = x
            for block in whole[first : last + 1]:
                out = block(out)
        self.across_bytes = out.numel() * out.element_size()
        del whole, out
        modules = nn.Sequential(*cases.blocks(case, self.ranks)[first : last + 1])
        if first:
            x = x.requires_grad_()
        parameters: list[torch.Tensor] = list(modules.parameters())
        self.parameters = sum(each.numel() for each in parameters)
        piece = Slice(lambda leaves: [modules(leaves[0])], [x], [*parameters, *modules.buffers()], parameters)
        self.through = Pass(piece, "cpu")
        self.optimizer = optimizer_of(OPTIMIZER, parameters)

    def exchanges(self) -> list[list[int]]:
        """(bytes, calls) of the all-reduces of one pass."""
        self.ranks.seen.clear()
        self.through.forget()
        self.through()
        return [[size, self.ranks.seen.count(size)] for size in sorted(set(self.ranks.seen))]


def network(world: int, rank: int, groups: Groups) -> dict[str, Callable[[], float]]:
    """Parts that measure all-reduces of pairs and of all ranks, and sends between pairs; all pairs at once."""
    pair = [rank - rank % 2, rank - rank % 2 + 1]
    for first in range(0, world, 2):
        groups.of([first, first + 1])
    members = {2: groups.of(pair), world: groups.of(list(range(world)))}
    found: dict[str, Callable[[], float]] = {}
    for size in SIZES:
        tensor = torch.ones(size // 4)
        calls = 8 if size < 2**20 else 1

        def reduce(group: Any, tensor: torch.Tensor = tensor, calls: int = calls) -> float:
            began = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(tensor, group=group)
            return (time.perf_counter() - began) / calls

        def send(tensor: torch.Tensor = tensor, calls: int = calls) -> float:
            other = pair[1 - rank % 2]
            began = time.perf_counter()
            for _ in range(calls):
                for sender in pair:  # there and back
                    (dist.send if rank == sender else dist.recv)(tensor, other)
            return (time.perf_counter() - began) / calls / 2

        for count, group in members.items():
            found[f"all_reduce {count} {size}"] = partial(reduce, group)
        found[f"send_recv 2 {size}"] = send
    return found


def alone(case: Case, plans: Sequence[Plan]) -> tuple[dict[str, Alone], dict[str, Callable[[], float]]]:
    """Every shard of the plans, each once, and the parts that time its passes and its optimizer."""
    count = len(cases.blocks(case, Ranks()))
    shards: dict[str, Alone] = {}
    for plan in plans:
        for first, last in cases.cut(case, count, plan):
            shard = (first, last, case.batch // plan.micro_batches // plan.dp, plan.tp)
            shards[f"shard {' '.join(map(str, shard))}"] = Alone(case, shard)
    parts: dict[str, Callable[[], float]] = {}
    for name, each in shards.items():

        def through(each: Alone = each) -> float:
            def once() -> None:
                each.through.forget()
                each.through()

            return seconds(once)

        parts[name] = through
        parts[name.replace("shard", "update")] = partial(seconds, each.optimizer.step)
    return shards, parts


def seconds(do: Callable[[], Any], before: int = 1) -> float:
    """Wall-clock time of the last call, with so many `before` that the part finds its caches as its own loop would."""
    for _ in range(before):
        do()
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def main() -> None:
    """Measures all rounds."""
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    case = Case(**json.loads(sys.argv[4]))
    known = {plan.name: plan for plan in (*cases.TWO, *cases.FOUR)}
    plans, rounds, plain = [known[name] for name in json.loads(sys.argv[5])], int(sys.argv[6]), "plain" in sys.argv[7:]
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    groups = Groups(world)
    shards, parts = ({}, {}) if plain else alone(case, plans)
    facts = {
        name: {"exchanges": each.exchanges(), "across_bytes": each.across_bytes, "parameters": each.parameters}
        for name, each in shards.items()
    }
    if not plain:
        parts |= network(world, rank, groups)
    for plan in plans:
        real = Real(case, plan, rank, groups)
        parts[f"plan {plan.name}"] = partial(seconds, real.step, 0 if plain else 1)
    found: dict[str, list[float]] = {name: [] for name in parts}
    gc.collect()
    gc.disable()
    for at in range(WARM_UPS + rounds):
        for name, part in parts.items():
            dist.barrier()
            took_s = part()
            if at >= WARM_UPS:
                found[name].append(took_s)
    (folder / f"{rank}.json").write_text(json.dumps({"seconds": found, "facts": facts}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
