"""The product's messages by key: a test asserts a key and its fields, and tests/messages holds the words.

A key is a file, a table and a name: `milp.registry.unknown` is `unknown` under `[registry]` in milp.toml. A template is
written as for `str.format`, and a field with `!r` is shown as Python shows the value.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

FOLDER = Path(__file__).parents[1] / "messages"


class fragment(str):
    """A value of which a field may hold more, before and behind."""


@dataclass(frozen=True)
class Said:
    """True where a text says a message; shows otherwise which words were looked for."""

    found: bool
    key: str
    pattern: str

    def __bool__(self) -> bool:
        return self.found

    def __repr__(self) -> str:
        return f"<{self.key} is {'' if self.found else 'not '}there: {self.pattern}>"


def says(text: str | Iterable[object], key: str, /, **fields: object) -> Said:
    """Whether the text holds the message, or one of several texts is it; a field that is not given may be anything."""
    wanted = pattern(key, **fields)
    if isinstance(text, str):
        found = re.search(wanted, text) is not None
    else:
        found = any(isinstance(one, str) and re.fullmatch(wanted, one) for one in text)
    return Said(found, key, wanted)


def wording(key: str, /, **fields: object) -> str:
    """The whole message, all of whose fields are given."""
    if missing := {field for _, field, _ in pieces(key) if field} - set(fields):
        raise TypeError(f"{key} has the fields {', '.join(sorted(missing))} too")
    return "".join(
        before + (_shown(fields[field], as_is) if field else "") for before, field, as_is in _of(key, fields)
    )


def pattern(key: str, /, **fields: object) -> str:
    """The message as a regular expression, as for `pytest.raises(match=...)`; what is not given may be anything."""
    return "".join(re.escape(before) + _pattern(field, as_is, fields) for before, field, as_is in _of(key, fields))


def excerpt(key: str, /, **fields: object) -> str:
    """The longest piece of the message that the given fields tell, for what only looks for a constant text."""
    found, current = [], ""
    for before, field, as_is in _of(key, fields):
        current += before
        if field and (field not in fields or isinstance(fields[field], fragment)):
            found.append(current)
            current = ""
        elif field:
            current += _shown(fields[field], as_is)
    return max((*found, current), key=len)


def pieces(key: str) -> list[tuple[str, str, bool]]:
    """A message as constant texts, each with the field behind it ("" for none) and whether that is shown by `repr`."""
    template = catalogue()[key]
    return [(before, field or "", how == "r") for before, field, _, how in string.Formatter().parse(template)]


@cache
def catalogue() -> dict[str, str]:
    """All messages: their templates by key."""
    return {
        ".".join((file.stem, *path)): template
        for file in sorted(FOLDER.glob("*.toml"))
        for path, template in _leaves(tomllib.loads(file.read_text(encoding="utf-8")))
    }


def _leaves(table: dict[str, Any]) -> Iterable[tuple[tuple[str, ...], str]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from (((name, *path), template) for path, template in _leaves(value))
        else:
            yield (name,), value


def _of(key: str, fields: dict[str, object]) -> list[tuple[str, str, bool]]:
    found = pieces(key)
    if unknown := set(fields) - {field for _, field, _ in found}:
        raise TypeError(f"{key} has no field {', '.join(sorted(unknown))}")
    return found


def _pattern(field: str, as_is: bool, fields: dict[str, object]) -> str:
    if not field:
        return ""
    if field not in fields:
        return "(?s:.*?)"
    if isinstance(value := fields[field], fragment):
        return f"(?s:.*?){re.escape(value)}(?s:.*?)"
    return re.escape(_shown(value, as_is))


def _shown(value: object, as_is: bool) -> str:
    return repr(value) if as_is else str(value)
