"""Conversion of JSON to frozen dataclasses, whatever the age of the daemon that sent it.

A key that a class does not have is ignored; a key that is missing, or of another type, gets the field's default. So
every field of such a class has a default: None if "absent" and "empty" differ.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")
_Reader = Callable[[Any], Any]


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
    for name, sent, reader in _fields(cast("Any", cls)):
        if sent in data:
            try:
                found[name] = reader(data[sent])
            except _Unfit:
                continue
    return cls(**found)


def written(value: Any) -> Any:
    """Return the JSON that `read` reads: dictionaries, lists, texts and numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_sent(field): written(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: written(item) for name, item in value.items()}
    return [written(item) for item in value] if isinstance(value, (tuple, list)) else value


@cache
def _fields(cls: type[Any]) -> tuple[tuple[str, str, _Reader], ...]:
    """Return each field's name, its name in the JSON, and the function that reads it."""
    hints = typing.get_type_hints(cls)
    return tuple((field.name, _sent(field), _reader(hints[field.name])) for field in dataclasses.fields(cls))


def _sent(field: dataclasses.Field[Any]) -> str:
    return cast("str", field.metadata.get("key", field.name))


def _reader(kind: Any) -> _Reader:
    """Return the function that reads a value of this type; fails for types that no answer has."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin in (typing.Union, types.UnionType):
        (one,) = (_reader(each) for each in inner if each is not type(None))
        return lambda value: None if value is None else one(value)
    if origin is tuple and inner[1:] == (...,):
        return _many(_reader(inner[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _by_name(_reader(inner[1]))
    if dataclasses.is_dataclass(kind):
        return _object(cast("type[Any]", kind))
    return _PLAIN[kind]


def _many(item: _Reader) -> _Reader:
    def reader(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise _Unfit
        return tuple(item(each) for each in value)

    return reader


def _by_name(item: _Reader) -> _Reader:
    def reader(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _Unfit
        return {str(name): item(each) for name, each in value.items()}

    return reader


def _object(cls: type[Any]) -> _Reader:
    def reader(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _Unfit
        return read(cls, value)

    return reader


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unfit
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Unfit
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Unfit
    try:
        return float(value)
    except OverflowError:
        raise _Unfit from None


def _whole(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Unfit
    return value


_PLAIN: dict[Any, _Reader] = {str: _text, bool: _flag, float: _number, int: _whole}
