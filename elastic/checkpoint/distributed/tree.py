"""A state as named tensors and a skeleton: the same nested containers, with a leaf in the place of each tensor.

A name is the path of keys to the tensor joined by dots, as in torch.distributed.checkpoint, so that its own tools read
these checkpoints too. Anything but a dense tensor stays in the skeleton, with the types of keys and containers.
"""

from __future__ import annotations

import copy
import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from elastic.base.errors import CheckpointError

ROOT = "state"
_SHOWN = 3
_GONE = object()

# A skeleton is pickled with the module of its leaves: until 1.1, that of checkpoints of 0.1.0 is found, too.
sys.modules["elastic.bypath.tree"] = sys.modules[__name__]


@dataclass(frozen=True)
class Leaf:
    """The place of a tensor in a skeleton; `sharded`: each worker had a part of it."""

    name: str
    sharded: bool


def flatten(state: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Return the tensors of a state by name, and its skeleton."""
    tensors: dict[str, torch.Tensor] = {}

    def leaf(tensor: torch.Tensor, way: tuple[Any, ...]) -> Leaf:
        name = ".".join(map(str, (ROOT, *way)))
        if name in tensors:  # two paths with the same name: {"a.b": ..., "a": {"b": ...}}
            name = f"{ROOT}.{way!r}"
        tensors[name] = tensor.detach()
        return Leaf(name, isinstance(tensor, DTensor))

    return tensors, _mapped(state, (), _is_dense, leaf)


def rebuild(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Rebuild the state that `flatten` took apart, with these tensors; dicts lose entries without their tensor."""
    return _mapped(skeleton, (), lambda value: isinstance(value, Leaf), lambda leaf, _: tensors.get(leaf.name, _GONE))


def merged(saved: Any, asked: Any) -> Any:
    """Return the skeleton that was asked for, with everything but tensors as it was saved.

    Both belong to one model, but rank 0's was saved: other workers may have tensors of their own.
    """
    if isinstance(saved, dict) and isinstance(asked, dict):
        same = copy.copy(saved)
        for key, each in asked.items():
            same[key] = merged(saved[key], each) if key in saved else each
        return same
    if type(saved) is list and type(asked) is list and len(saved) == len(asked):
        return [merged(one, other) for one, other in zip(saved, asked, strict=True)]
    return asked if isinstance(asked, Leaf) else saved


def leaves(skeleton: Any) -> dict[str, Leaf]:
    """Return the leaves of a skeleton by name."""
    found: dict[str, Leaf] = {}

    def note(leaf: Leaf, _: tuple[Any, ...]) -> Leaf:
        return found.setdefault(leaf.name, leaf)

    _mapped(skeleton, (), lambda value: isinstance(value, Leaf), note)
    return found


def empty_below(state: Any) -> tuple[str, ...]:
    """Return the prefixes of names that `state` can take: below its empty dicts, as in a new optimizer."""
    found: list[str] = []

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Mapping):
            if not value:
                found.append(f"{name}.")
            for key, each in value.items():
                walk(each, f"{name}.{key}")
        elif isinstance(value, (list, tuple)):
            for index, each in enumerate(value):
                walk(each, f"{name}.{index}")

    walk(state, ROOT)
    return tuple(found)


def differences(saved: Mapping[str, Sequence[int]], given: Mapping[str, Sequence[int]]) -> list[str]:
    """Describe the differences in names and shapes between a checkpoint and the state that it is read into."""
    found = []
    for name in sorted({*saved, *given}):
        shown = name.removeprefix(f"{ROOT}.")
        if name not in given:
            found.append(f"{shown} was saved and is not there now")
        elif name not in saved:
            found.append(f"{shown} was not saved")
        elif tuple(saved[name]) != tuple(given[name]):
            found.append(f"{shown} was {_shape(saved[name])} and is {_shape(given[name])}")
    return found


def told(found: Sequence[str]) -> str:
    """Join the first differences to a line."""
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more


def fingerprint(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return a signed 64-bit number, equal on workers whose tensors have the same names, shapes and types."""
    rows = (f"{name} {tuple(each.shape)} {each.dtype} {isinstance(each, DTensor)}" for name, each in tensors.items())
    digest = hashlib.blake2b("\n".join(rows).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def share(tensors: Mapping[str, torch.Tensor], rank: int, size: int) -> dict[str, torch.Tensor]:
    """Return what one of `size` workers writes: its parts of sharded tensors, and an even share of replicated ones.

    Every worker computes the same shares, as long as all have the same tensors.
    """
    replicated = {name: each.nbytes for name, each in tensors.items() if not isinstance(each, DTensor)}
    owners = _spread(replicated, size)
    return {name: each for name, each in tensors.items() if owners.get(name, rank) == rank}


def _spread(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Map names to ranks: the largest first, each to the rank with the least so far."""
    loads = [0] * ranks
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owner = loads.index(min(loads))
        loads[owner] += sizes[name] + 1
        owners[name] = owner
    return owners


def _is_dense(value: Any) -> bool:
    """Whether it is a tensor of the kinds that torch.distributed.checkpoint splits and joins.

    Raises CheckpointError for a shard of another kind: only rank 0's part would be kept.
    """
    if type(value).__name__ == "ShardedTensor":
        raise CheckpointError(
            "the state holds ShardedTensors, which cannot be saved: use FSDP2 (fully_shard), or give FSDP a device_mesh"
        )
    if type(value) not in (torch.Tensor, torch.nn.Parameter) and not isinstance(value, DTensor):
        return False
    return bool(value.layout == torch.strided and not value.is_quantized)


def _mapped(
    value: Any, way: tuple[Any, ...], chosen: Callable[[Any], bool], put: Callable[[Any, tuple[Any, ...]], Any]
) -> Any:
    """Copy nested containers, with `put(each, way)` in the place of each value that is `chosen`."""
    if chosen(value):
        return put(value, way)
    if isinstance(value, dict):
        same = copy.copy(value)  # keeps its type and attributes: a module's state_dict has its versions
        for key in list(value):
            same[key] = _mapped(value[key], (*way, key), chosen, put)
            if same[key] is _GONE:
                del same[key]
        return same
    if type(value) is list:
        return [_mapped(each, (*way, index), chosen, put) for index, each in enumerate(value)]
    if isinstance(value, tuple):
        items: Iterable[Any] = (_mapped(each, (*way, index), chosen, put) for index, each in enumerate(value))
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return tuple(items) if type(value) is tuple else value
    return value


def _shape(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes)) or "a scalar"
