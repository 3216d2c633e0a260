"""One key of the configuration as a field of its section: its properties, and the check of its values."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Callable
from typing import Any, cast

from bftd.base.errors import ConfigError

# TOML guarantees no longer integers, and SQLite and C accept none.
_LARGEST = 2**63 - 1


def key(
    default: Any,
    doc: str,
    *,
    unit: str = "",
    example: Any = None,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    tunable: bool = False,
    check: Callable[[Any], None] | None = None,
) -> Any:
    """Return a dataclass field that carries all properties of one key; `bft tune` changes those that are tunable.

    `check` raises ValueError with one line for a wrong value of the right type.
    """
    metadata = {
        "doc": doc,
        "unit": unit,
        "example": default if example is None else example,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "tunable": tunable,
        "check": check,
    }
    return dataclasses.field(default=default, metadata=metadata)


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        return "a number of thousands of digits"


def _texts(value: Any, where: str, example: Any) -> tuple[str, ...]:
    """Return a list of distinct texts as a tuple; raises ConfigError."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and item.strip() for item in value):
        raise ConfigError(f"{where} must be a list of texts, not {_shown(value)}; for example {json.dumps(example)}")
    if len(set(value)) < len(value):
        raise ConfigError(f"{where} names {max(value, key=value.count)} twice")
    return tuple(value)


def checked(field: dataclasses.Field[Any], kind: type, value: Any, where: str) -> Any:
    """Return `value` checked for a key; raises ConfigError with one line that begins with `where`."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            value = math.inf if value > 0 else -math.inf
    if typing.get_origin(kind) is tuple:
        return _texts(value, where, field.metadata["example"])
    if type(value) is not kind:
        wanted = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false"}[kind.__name__]
        raise ConfigError(
            f"{where} must be {wanted}, not {_shown(value)}; for example {json.dumps(field.metadata['example'])}"
        )
    if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        raise ConfigError(f"{where} must be a whole number of at most 64 bits, not a longer one")
    choices = cast("tuple[str, ...]", field.metadata["choices"])
    if choices and value not in choices:
        raise ConfigError(f"{where} must be one of {', '.join(choices)}, not {value!r}")
    low, high = field.metadata["minimum"], field.metadata["maximum"]
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} must be a finite number, not {value}")
    if low is not None and value < low:
        raise ConfigError(f"{where} must be at least {low}, not {value}")
    if high is not None and value > high:
        raise ConfigError(f"{where} must be at most {high}, not {value}")
    if (check := field.metadata["check"]) is not None:
        try:
            check(value)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
    return value
