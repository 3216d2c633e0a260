"""A JSON object read field by field: every fault is a Malformed of one line that names the field.

Unknown fields are ignored, so that an older daemon serves a newer driver.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from bftd.protocol.bounds import NAME_MOST, NUMBER_MOST, TEXT_MOST, WHOLE_MOST
from bftd.protocol.errors import Malformed

_REQUIRED = object()


class Fields:
    """The fields of one JSON object, read by type; every fault begins with `where` and is made an error by `error`."""

    def __init__(self, data: object, where: str, error: Callable[[str], Exception] = Malformed) -> None:
        if not isinstance(data, dict):
            raise error(f"{where} must be a JSON object")
        self._data: dict[str, Any] = data
        self._where = where
        self._error = error

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self._data.get(name) is not None

    def raw(self, name: str) -> Any:
        """Return a field unchanged."""
        return self._data.get(name)

    def text(self, name: str, default: Any = _REQUIRED, choices: tuple[str, ...] = ()) -> Any:
        """Return a text; unprintable characters become blanks, and a text that is too long is cut."""
        value = self._get(name, default)
        if value is default:
            return value
        if not isinstance(value, str):
            raise self._wrong(name, "a text", value)
        value = " ".join(printable(value[: 2 * TEXT_MOST]).split())[:TEXT_MOST]
        if choices and value not in choices:
            raise self._wrong(name, f"one of {', '.join(choices)}", value)
        return value

    def name(
        self,
        name: str,
        default: Any = _REQUIRED,
        *,
        most: int = NAME_MOST,
        form: re.Pattern[str] | None = None,
        wanted: str = "a name",
    ) -> Any:
        """Return a text that names something; raises Malformed if it is too long, unprintable or not of the `form`."""
        value = self.text(name, default)
        if value is default:
            return value
        if len(self._data[name]) > most:
            raise self._wrong(name, f"a text of at most {most} letters", value)
        if not self._data[name].isprintable():
            raise self._wrong(name, "a text of printable letters", self._data[name])
        if form is not None and not form.fullmatch(value):
            raise self._wrong(name, wanted, value)
        return value

    def whole(self, name: str, default: Any = _REQUIRED, minimum: int = 0, maximum: int = WHOLE_MOST) -> Any:
        """Return a whole number."""
        value = self._get(name, default)
        if value is default:
            return value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "a whole number", value)
        if not minimum <= value <= maximum:
            raise self._wrong(name, _span(minimum, maximum, value, maximum >= WHOLE_MOST), value)
        return value

    def number(self, name: str, default: Any = _REQUIRED, minimum: float = 0.0, maximum: float = NUMBER_MOST) -> Any:
        """Return a finite number."""
        value = self._get(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
            raise self._wrong(name, "a finite number", value)
        if not minimum <= value <= maximum:
            raise self._wrong(name, _span(minimum, maximum, value, maximum >= NUMBER_MOST), value)
        return float(value)

    def measure(self, name: str) -> float | None:
        """Return a number of any sign; None if it is missing, or not finite like the loss of a model that diverges."""
        value = self.raw(name)
        if isinstance(value, float) and not math.isfinite(value):
            return None
        number: float | None = self.number(name, None, minimum=-math.inf, maximum=math.inf)
        return number

    def flag(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return true or false."""
        value = self._get(name, default)
        if value is not default and not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def items(self, name: str, most: float = math.inf) -> list[Any]:
        """Return a list of at most `most` items; a missing or null one is empty."""
        value = self._get(name, None)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, "a list", value)
        if len(value) > most:
            raise self.fault(f"{name} may hold {most} items, not {len(value)}")
        return value

    def nested(self, name: str) -> Fields | None:
        """Return a nested object, None if it is missing or null."""
        return self.inner(name) if self.has(name) else None

    def inner(self, name: str) -> Fields:
        """Return a nested object that must be there."""
        return Fields(self.raw(name), f"{self._where}: {name}", self._error)

    def objects(self, name: str) -> list[Fields]:
        """Return a list of objects; a missing or null one is empty."""
        return [Fields(item, f"{self._where}: each of {name}", self._error) for item in self.items(name)]

    def only(self, names: Sequence[str]) -> None:
        """Raise the error for the first field that has none of these names."""
        for name in self._data:
            if name not in names:
                raise self.fault(f"unknown field {name!r}: there are {', '.join(names)}")

    def wrong(self, name: str, wanted: str) -> Exception:
        """Return the error for a field that is invalid in another way."""
        return self._wrong(name, wanted, self._data.get(name))

    def fault(self, text: str) -> Exception:
        """Return the error for fields that contradict one another."""
        return self._error(f"{self._where}: {text}")

    def _get(self, name: str, default: Any) -> Any:
        value = self._data.get(name)
        if value is None:
            if default is _REQUIRED:
                raise self.fault(f"{name} is missing")
            return default
        return value

    def _wrong(self, name: str, wanted: str, value: object) -> Exception:
        return self.fault(f"{name} must be {wanted}, not {repr(value)[:80]}")


def printable(text: str) -> str:
    """Return the text with each unprintable character replaced by a blank."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _span(minimum: float, maximum: float, value: float, anything: bool) -> str:
    """Describe the range of a number; if almost `anything` is allowed, only the limit that `value` violates."""
    if not anything:
        return f"{minimum:.12g} to {maximum:.12g}"
    return f"{minimum:.12g} or more" if value < minimum else f"at most {maximum:.12g}"


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False
