"""Gradients that do not depend on the number of workers: each step has fixed pieces, added up in one order.

A step always has the same pieces, whichever worker computes them (the logical workers of EasyScale, Li et al., SC
2023). Random numbers are seeded by step and piece, batch normalisation of each piece begins from the statistics that
the previous step left, and gradients are added up along a binary tree over the pieces: each worker adds up the subtrees
whose pieces it has all of, and the workers together add up the rest, each of them a part of all elements.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import SyncBatchNorm

from elastic.base.errors import UsageError
from elastic.script import ranks

Node = tuple[int, int]
"""A subtree, as the range of its pieces: the first, and the one after the last."""


def children(node: Node) -> tuple[Node, Node]:
    """Return the two halves of a subtree of more than one piece; the first has the largest power of two of them."""
    begin, end = node
    middle = begin + (1 << (end - begin - 1).bit_length() - 1)
    return (begin, middle), (middle, end)


@functools.lru_cache(maxsize=256)
def whole(node: Node, low: int, high: int) -> tuple[Node, ...]:
    """Return the largest subtrees, in order, that together hold exactly the pieces from `low` to before `high`."""
    begin, end = node
    if low <= begin and end <= high:
        return (node,) if begin < end else ()
    if end <= low or high <= begin:
        return ()
    first, second = children(node)
    return whole(first, low, high) + whole(second, low, high)


@functools.lru_cache(maxsize=8)
def _nodes(node: Node) -> frozenset[Node]:
    begin, end = node
    if end - begin < 2:
        return frozenset((node,))
    first, second = children(node)
    return _nodes(first) | _nodes(second) | {node}


@dataclass(frozen=True)
class StepCut:
    """Step `number`, cut into `count` pieces that `size` workers share; this worker has rank `rank`."""

    number: int
    seed: int
    count: int
    rank: int
    size: int


@dataclass
class _Kind:
    """Tensors of one type on one device: parameters, statistics of batch normalisation, and sums to use again."""

    parameters: list[torch.nn.Parameter] = field(default_factory=list)
    statistics: list[torch.Tensor] = field(default_factory=list)
    free: list[torch.Tensor] = field(default_factory=list)
    given: list[torch.Tensor] = field(default_factory=list)
    complete: bool = False
    """Whether every parameter has had a gradient in this step, as far as this worker knows."""


class Gradients:
    """The gradients of one model, step after step."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Raises UsageError for a model whose gradients cannot be added piece by piece."""
        self._model: Any = model
        self._kinds: dict[tuple[torch.dtype, torch.device], _Kind] = {}
        self._kept: list[torch.Tensor] = []
        self._begun: list[torch.Tensor] = []
        self._added: dict[tuple[torch.dtype, torch.device], list[tuple[Node, torch.Tensor]]] = {}
        for parameter in model.parameters():
            if type(parameter.data) is not torch.Tensor:
                raise UsageError(
                    "elastic.batches: pieces= is for models that each worker has whole; leave it out for a sharded one"
                )
            if parameter.requires_grad:
                self._kind(parameter).parameters.append(parameter)
        for module in model.modules():
            if isinstance(module, SyncBatchNorm):
                raise UsageError(
                    "elastic.batches: SyncBatchNorm depends on the number of workers; with pieces= use BatchNorm, "
                    "which sees one piece at a time"
                )
            statistics = _tensors(module, "running_mean", "running_var")
            if len(statistics) == 2:  # any class of batch normalization, a script's own among them
                for statistic in statistics:
                    self._kind(statistic).statistics.append(statistic)
                self._kept += statistics + _tensors(module, "num_batches_tracked")

    def _kind(self, tensor: torch.Tensor) -> _Kind:
        return self._kinds.setdefault((tensor.dtype, tensor.device), _Kind())

    @contextlib.contextmanager
    def piece(self, cut: StepCut, index: int, weight: float, last: bool) -> Iterator[None]:
        """Compute a piece in this context; `weight` is its share of the step's samples, 0 for one that does not count.

        After the `last` piece of this worker the parameters hold the gradients of the whole step.
        """
        self._begun = self._begun or [kept.clone() for kept in self._kept]
        for kept, before in zip(self._kept, self._begun, strict=True):
            kept.copy_(before)
        for kind in self._kinds.values():
            for parameter in kind.parameters:
                parameter.grad = None
            kind.free += kind.given
            kind.given.clear()
        _seed(f"{cut.seed}:{cut.number}:{index}")
        with self._model.no_sync() if hasattr(self._model, "no_sync") else contextlib.nullcontext():
            yield
        if weight:
            self._add(cut, index, weight)
        if last:
            self._finish(cut)

    def _add(self, cut: StepCut, index: int, weight: float) -> None:
        """Add a piece's gradients to those of its neighbours, as far as the tree joins them."""
        nodes = _nodes((0, cut.count))
        for key, kind in self._kinds.items():
            added = self._added.setdefault(key, [])
            added.append(((index, index + 1), _flat(kind, key, weight)))
            while len(added) > 1 and (node := (added[-2][0][0], added[-1][0][1])) in nodes:
                _, second = added.pop()
                _, first = added.pop()
                added.append((node, first.add_(second)))
                kind.free.append(second)

    def _finish(self, cut: StepCut) -> None:
        for key, kind in self._kinds.items():
            mine = dict(self._added.get(key, ()))
            _spread(kind, _sum(cut, mine, _length(kind), key))
            kind.given += mine.values()  # with one worker the parameters' gradients are in them
        self._begun, self._added = [], {}


def _length(kind: _Kind) -> int:
    """Return the number of elements of all tensors, plus a flag per parameter for whether it has a gradient."""
    return sum(one.numel() for one in (*kind.parameters, *kind.statistics)) + len(kind.parameters)


def _flat(kind: _Kind, key: tuple[torch.dtype, torch.device], weight: float) -> torch.Tensor:
    """Flatten what a piece adds to the sums; raises UsageError for a sparse gradient."""
    dtype, device = key
    flat = kind.free.pop() if kind.free else torch.empty(_length(kind), dtype=dtype, device=device)
    at = 0
    for parameter in kind.parameters:
        if parameter.grad is None:
            flat[at : at + parameter.numel()] = 0.0
        else:
            if parameter.grad.is_sparse:
                raise UsageError(
                    "elastic.batches: pieces= takes no sparse gradients; make embeddings with sparse=False"
                )
            flat[at : at + parameter.numel()] = parameter.grad.reshape(-1)
        at += parameter.numel()
    for kept in kind.statistics:
        torch.mul(kept.reshape(-1), weight, out=flat[at : at + kept.numel()])
        at += kept.numel()
    has = [one.grad is not None for one in kind.parameters]
    kind.complete |= all(has)
    flat[at:] = 1.0 if all(has) else torch.tensor(has, dtype=dtype)  # torch.tensor would wait for the device
    return flat


def _spread(kind: _Kind, flat: torch.Tensor) -> None:
    """Give the sums to the parameters, and the mean over the step to the statistics of batch normalisation."""
    at, count = 0, len(kind.parameters)
    counts = [1.0] * count if kind.complete else flat[flat.numel() - count :].tolist()
    kind.complete = False
    for parameter, has in zip(kind.parameters, counts, strict=True):
        parameter.grad = flat[at : at + parameter.numel()].view(parameter.shape) if has else None
        at += parameter.numel()
    for kept in kind.statistics:
        kept.copy_(flat[at : at + kept.numel()].view(kept.shape))
        at += kept.numel()


def _sum(
    cut: StepCut, mine: dict[Node, torch.Tensor], length: int, key: tuple[torch.dtype, torch.device]
) -> torch.Tensor:
    """Return the sums over all pieces, the same to the last bit on any number of workers."""
    root = (0, cut.count)
    if cut.size == 1:
        return _total(root, mine)
    if not dist.is_initialized():
        raise UsageError("elastic.batches: pieces= needs torch.distributed's process group; leave it out with Horovod")
    of_all = [whole(root, *ranks.share(cut.count, rank, cut.size)) for rank in range(cut.size)]
    each = -(-length // cut.size)
    dtype, device = key
    sent = torch.zeros((len(mine), cut.size * each), dtype=dtype, device=device)
    for row, node in zip(sent, of_all[cut.rank], strict=True):
        row[:length] = mine[node]
    # Each worker adds up its part of the elements: this sends as much as any other all-reduce.
    sent = sent.view(len(mine), cut.size, each).transpose(0, 1).contiguous()
    counts = [len(nodes) * each for nodes in of_all]
    got = torch.empty(sum(counts), dtype=dtype, device=device)
    dist.all_to_all_single(got, sent.view(-1), counts, [len(mine) * each] * cut.size)
    parts = [node for nodes in of_all for node in nodes]
    added = _total(root, dict(zip(parts, got.view(len(parts), each), strict=True)))
    total = torch.empty((cut.size, each), dtype=dtype, device=device)
    dist.all_gather(list(total), added)
    return total.view(-1)[:length]


def _total(node: Node, parts: dict[Node, torch.Tensor]) -> torch.Tensor:
    """Return the sum of a subtree made up of `parts`, computed in place in the first of them."""
    if node in parts:
        return parts[node]
    first, second = children(node)
    return _total(first, parts).add_(_total(second, parts))


def _tensors(module: torch.nn.Module, *names: str) -> list[torch.Tensor]:
    found = [getattr(module, name, None) for name in names]
    return [one for one in found if isinstance(one, torch.Tensor)]


def _seed(text: str) -> None:
    """Seed all random number generators that a step may use in this process."""
    seed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


class Models:
    """The gradients of each model of a script, known from the first time that the script asks for them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Gradients]] = {}

    def of(self, model: torch.nn.Module) -> Gradients:
        """Return the gradients of a model."""
        if id(model) not in self._known:
            self._known[id(model)] = model, Gradients(model)
        return self._known[id(model)][1]
