"""Reads a model as the chain of modules that a forward pass calls, if torch.export does not accept the model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from sizing.tracer import answering, torch_internals
from sizing.tracer.device import fake_host
from sizing.tracer.graphs import models
from sizing.tracer.operators import flops
from sizing.tracer.refusal import Refusal

_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def units(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks of a model with their paths: the elements of its outermost lists, and the modules beside those.

    A list within a list is descended into, a block is not.
    """
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if isinstance(child, _LISTS):
            yield from units(child, where)
        elif isinstance(module, _LISTS) or not any(True for _ in child.children()):
            yield where, child
        elif any(isinstance(each, _LISTS) for each in child.modules()):
            yield from units(child, where)
        else:
            yield where, child


def chain(
    made: models.BuiltModel, fake: Any, request: dict[str, Any]
) -> tuple[str, tuple[list[list[Any]], set[str]], str]:
    """Return ("modules", (the rows of the chain, operators of unknown work), a note " on real tensors" or "").

    The forward pass runs on tensors without contents. If sizes depend on contents (a router that picks tokens), the
    model is made once more and runs on real tensors.
    """
    if fake is not None:
        try:
            with fake:
                return "modules", _chained(made), ""
        except torch_internals.CONTENTS:
            made = fake_host.on_cpu(request)
        except Refusal:
            raise
        except Exception as error:
            if not any(isinstance(each, torch_internals.CONTENTS) for each in _causes(error)):
                raise Refusal(f"the forward pass fails: {answering.reason_of(error, request['path'])}") from None
            made = fake_host.on_cpu(request)
    try:
        return "modules", _chained(made), " on real tensors"
    except Refusal:
        raise
    except Exception as error:
        raise Refusal(f"the forward pass fails: {answering.reason_of(error, request['path'])}") from None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _chained(made: models.BuiltModel) -> tuple[list[list[Any]], set[str]]:
    watch = OperatorWatch(made)
    with contextlib.ExitStack() as stack:
        for path, module in units(made.model):
            stack.callback(module.register_forward_pre_hook(watch.enter(path)).remove)
        stack.enter_context(flops.Attention(watch))
        stack.enter_context(watch)
        stack.enter_context(torch.enable_grad())
        output = made.model(*made.args, **made.kwargs)
        made.loss(output)
    return watch.rows(), watch.unknown


class _Value:
    """A storage: the unit that made it, the last that used it, its bytes, and whether later stages must receive it."""

    __slots__ = ("bytes", "last", "made", "moves", "storage")

    def __init__(self, storage: Any, made: int, moves: bool) -> None:
        self.storage = storage  # kept alive, so that no other storage gets its address
        self.made = self.last = made
        self.bytes = 0
        self.moves = moves


class OperatorWatch(flops.Counter):  # type: ignore[no-untyped-call]
    """A mode that follows the operators of a forward pass from unit to unit."""

    def __init__(self, made: models.BuiltModel) -> None:
        super().__init__()
        self._names: list[str] = []
        self._counts: list[int] = []
        self._began = 0
        self._weights: dict[int, Any] = {}
        self._values: dict[int, _Value] = {}
        self._owned: dict[int, int] = {}
        for each in (*made.model.parameters(), *made.model.buffers()):
            self._weights[_key(each)] = each
        for each in torch_internals.tensors_in((made.args, made.kwargs)):
            self._values[_key(each)] = _Value(torch_internals.local(each).untyped_storage(), len(self._names), True)
        self._inputs = set(self._values)

    def enter(self, path: str) -> Any:
        """Return a hook for the beginning of a unit."""

        def hook(module: Any, inputs: Any) -> None:
            self._flush()
            again = sum(name == path or name.startswith(f"{path}@") for name in self._names)
            self._names.append(f"{path}@{again}" if again else path)
            self._began = self.flops

        return hook

    def _flush(self) -> None:
        """Assign the operations since the last unit began to that unit; those before the first are the first's."""
        if self._names:
            self._counts.append(self.flops - self._began)
            self._began = self.flops

    @property
    def _now(self) -> int:
        return max(0, len(self._names) - 1)

    def seen(self, args: Any, kwargs: Any, out: Any) -> None:
        """Record which unit uses which weights and values."""
        given = torch_internals.tensors_in((args, kwargs))
        moves = False
        for each in given:
            key = _key(each)
            if key in self._weights:
                self._owned.setdefault(key, self._now)
                moves |= each.requires_grad
                continue
            value = self._values.get(key)
            if value is not None:
                value.last = self._now
                if value.made < self._now:
                    value.bytes = max(value.bytes, each.numel() * each.element_size())
                moves |= value.moves
        for each in torch_internals.tensors_in(out):
            key = _key(each)
            if key in self._weights:
                continue
            if key not in self._values:
                self._values[key] = _Value(torch_internals.local(each).untyped_storage(), self._now, moves)
            self._values[key].moves |= moves

    def rows(self) -> list[list[Any]]:
        """Return one row for each unit, in the order of their calls: name, module, flops, bytes sent on, parameters."""
        self._flush()
        if not self._names:
            raise Refusal("the forward pass calls no module that could be an operator")
        self._counts[0] += self.flops - sum(self._counts)
        sent = [0] * len(self._names)
        for key, value in self._values.items():
            if value.moves and key not in self._inputs:
                for at in range(value.made, value.last):
                    sent[at] += min(value.bytes, value.storage.nbytes())
        owned = [0] * len(self._names)
        for key, at in self._owned.items():
            weight = self._weights[key]
            if weight.requires_grad:
                owned[at] += torch_internals.local(weight).numel()
        rows = zip(self._names, self._counts, sent, owned, strict=True)
        return [[name, name.partition("@")[0], count, across, own] for name, count, across, own in rows]


def _key(tensor: Any) -> int:
    return int(torch_internals.local(tensor).untyped_storage()._cdata)
