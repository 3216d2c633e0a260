"""Conversion of JSON to frozen dataclasses, whatever the age of the daemon that sent it.

A key that a class does not have is ignored; a key that is missing, or of another type, gets the field's default. So
every field of such a class has a default: None if "absent" and "empty" differ.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")


class _Unfit(Exception):
    """An error for a value that does not have its field's type."""


def key(name: str, default: Any) -> Any:
    """Declare a field with another name in the JSON, for example because that is a Python keyword."""
    return dataclasses.field(default=default, metadata={"key": name})


def read(cls: type[T], data: object) -> T:
    """Make an object of the class from JSON data; with all defaults if that is no JSON object."""
    if not isinstance(data, Mapping):
        return cls()
    found = {}
    for name, sent, kind in _fields(cast("Any", cls)):
        if sent in data:
            with suppress(_Unfit):
                found[name] = _value(kind, data[sent])
    return cls(**found)


def written(value: Any) -> Any:
    """Return the JSON that `read` reads: dictionaries, lists, texts and numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_sent(field): written(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: written(item) for name, item in value.items()}
    return [written(item) for item in value] if isinstance(value, (tuple, list)) else value


@cache
def _fields(cls: type[Any]) -> tuple[tuple[str, str, Any], ...]:
    """Return each field's name, its name in the JSON, and its type."""
    hints = typing.get_type_hints(cls)
    return tuple((field.name, _sent(field), hints[field.name]) for field in dataclasses.fields(cls))


def _sent(field: dataclasses.Field[Any]) -> str:
    return cast("str", field.metadata.get("key", field.name))


def _value(kind: Any, value: Any) -> Any:
    """Return a value as its field's type has it; raises _Unfit."""
    if kind is Any or type(value) is kind:
        return value
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (one,) = (each for each in inner if each is not type(None))
        return None if value is None else _value(one, value)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_value(inner[0], each) for each in value)
    if isinstance(value, Mapping):
        if dataclasses.is_dataclass(kind):
            return read(cast("type[Any]", kind), value)
        if origin is Mapping:
            return {str(name): _value(inner[1], each) for name, each in value.items()}
    if kind is float and type(value) is int:
        with suppress(OverflowError):
            return float(value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    raise _Unfit
