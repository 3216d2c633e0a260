"""Frozen dataclasses to JSON and back, by their type hints, for the ledger."""

from __future__ import annotations

import copy
import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

_ATOMS = frozenset({str, int, float, bool, type(None)})


def encode(item: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, nested ones included, as a JSON object.

    Like `dataclasses.asdict`, which also copies each string and number: for thousands of leases written at once, that
    would block the loop for a third of a second.
    """
    return {name: _encoded(getattr(item, name)) for name in _names(item.__class__)}


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(kind))


def _encoded(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if hasattr(kind, "__dataclass_fields__"):
        return encode(value)
    if kind is tuple or kind is list:
        return kind(map(_encoded, value))
    if kind is dict:
        return {_encoded(name): _encoded(item) for name, item in value.items()}
    return copy.deepcopy(value)


def plain(value: Any) -> Any:
    """Return any value of a field as JSON has it: dataclasses, and mappings and tuples of them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return encode(value)
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def decode(cls: type[T], data: Mapping[str, Any]) -> T:
    """Build a dataclass from `encode`'s object; missing fields keep their default, unknown ones are dropped.

    So a ledger written by another version of the same schema still loads.
    """
    return cls(**decoded(cls, data))


def decoded(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of those fields of a dataclass that `data` has, be it by the `old_name` in their metadata."""
    hints = typing.get_type_hints(cls)
    fields = typing.cast("Any", cls).__dataclass_fields__
    return {
        name: _value(hints[name], data[key])
        for name, field in fields.items()
        for key in (field.metadata.get("old_name"), name)
        if key in data
    }


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [kind for kind in arguments if kind is not type(None)]
        return None if value is None else _value(inner[0], value)
    if origin is tuple:
        if arguments[1:] == (...,):
            return tuple(_value(arguments[0], item) for item in value)
        return tuple(_value(kind, item) for kind, item in zip(arguments, value, strict=True))
    if origin is Mapping:
        return {name: _value(arguments[1], item) for name, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return decode(hint, value)
    return value
