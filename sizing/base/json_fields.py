"""Readers of objects of a JSON file; an error names the place of a fault and what to write there."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable
from typing import Any

from sizing.base.errors import UsageError
from slurm_plugin.errors import SlurmError
from slurm_plugin.nodeset import expand

_MOST = 2**63 - 1  # largest number: more than any cluster has, and a float can hold it
# A name that Slurm takes literally: these characters cannot be in one, or mean something else in an sbatch option.
_WORD = re.compile(r"[^\s#,'\"\\|&()\[\]*]*")


class _Repeated(ValueError):
    """A field is there twice: the second would silently replace the first."""


def decoded(text: str, name: str) -> Any:
    """Decode a JSON file called `name`; raise UsageError with the place of a syntax error or a repeated field."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise UsageError(f"{name}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except _Repeated as error:
        raise UsageError(f"{name}: {error}") from None
    except (RecursionError, ValueError):  # ValueError: numbers of thousands of digits
        raise UsageError(f"{name} is nested too deeply, or has too long numbers, to be such a file") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Repeated(f"the field {key!r} is there twice in an object: remove one")
        found[key] = value
    return found


class Fields:
    """An object of the file: `where` is its place in messages, `known` its allowed keys, None for any."""

    def __init__(self, where: str, data: Any, known: Collection[str] | None = None) -> None:
        self.where = where
        if not isinstance(data, dict):
            raise UsageError(f"{where}: give an object, {{...}}")
        self._data: dict[str, Any] = data
        for key in () if known is None else data.keys() - known:
            near = difflib.get_close_matches(key, known or (), n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known or ()))}"
            raise UsageError(f"{where}: no field {key}: {hint}")

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def wrong(self, key: str, wanted: str) -> UsageError:
        """Return the error of a field with a wrong value."""
        shown = json.dumps(self._data[key]) if key in self._data else "missing"
        return UsageError(f"{self.where}: {key} is {shown[:60]}: give {wanted}")

    def number(self, key: str, default: float | None = None, *, least: float = 0.0) -> float:
        """Return a number of at least `least`; without a default it is required."""
        value = self._data.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= _MOST:
            raise self.wrong(key, f"a number of {least:g} or more")
        return value

    def number_or_none(self, key: str, *, least: float = 0.0) -> float | None:
        """Return a number of at least `least`, None if it is null or missing."""
        return None if self._data.get(key) is None else self.number(key, least=least)

    def count(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """Return a whole number of at least `least`."""
        value = self._data.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
            raise self.wrong(key, f"a whole number of {least} or more")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text; without a default it is required."""
        value = self._data.get(key, default)
        if not isinstance(value, str) or not value.isprintable():
            raise self.wrong(key, "a text of one line")
        return value

    def word(self, key: str, default: str | None = None) -> str:
        """Return a name as it stands in an sbatch option; without a default it is required and not empty."""
        value = self.text(key, default)
        if not _WORD.fullmatch(value) or (not value and default is None):
            raise self.wrong(key, "a name as Slurm has it, without spaces and marks")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        """Return a list of such names, by default an empty one."""
        value = self.texts(key)
        if not all(item and _WORD.fullmatch(item) for item in value):
            raise self.wrong(key, "a list of names as Slurm has them, without spaces and marks")
        return value

    def texts(self, key: str, *, plain: bool = True) -> tuple[str, ...]:
        """Return a list of texts, by default an empty one; `plain` texts have only printable characters."""
        value = self._data.get(key, [])
        if not isinstance(value, list) or not all(
            isinstance(item, str) and (item.isprintable() or not plain) for item in value
        ):
            raise self.wrong(key, "a list of texts")
        return tuple(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self._data.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def nodes(self, key: str) -> tuple[str, ...]:
        """Return a set of nodes, folded or not."""
        return self._expanded(key, self.text(key))

    def counts_by_node(self, key: str, nodes: Collection[str], most: int) -> dict[str, int]:
        """Return a number from 0 to `most` for each of some nodes, which may be folded."""
        data = self._data.get(key, {})
        if not isinstance(data, dict):
            raise self.wrong(key, "an object of nodes and numbers")
        found: dict[str, int] = {}
        for folded, count in data.items():
            if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= most:
                raise UsageError(f"{self.where}: {key} of {folded} is {count!r}: give a whole number from 0 to {most}")
            for node in self._expanded(key, folded):
                if node not in nodes or node in found:
                    why = "twice" if node in found else "not one of the group's nodes"
                    raise UsageError(f"{self.where}: {key} names {node}, {why}: name each of its nodes once")
                found[node] = count
        return {node: found[node] for node in nodes if node in found}

    def items(self, key: str) -> Iterable[tuple[str, Any]]:
        """Return the entries of an object, which by default is empty."""
        value = self._data.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object, {...}")
        return value.items()

    def inner(self, key: str, known: Collection[str]) -> Fields:
        """Return an object in this one."""
        return Fields(f"{self.where}, {key}", self._data[key], known)

    def each(self, key: str, known: Collection[str] | None = None) -> Iterable[Fields]:
        """Return the objects of a list, which by default is empty."""
        items = self._data.get(key, [])
        if not isinstance(items, list):
            raise self.wrong(key, "a list")
        return [Fields(f"{self.where}, {key}, {at + 1}", item, known) for at, item in enumerate(items)]

    def _expanded(self, key: str, folded: str) -> tuple[str, ...]:
        try:
            return tuple(expand(folded))
        except SlurmError as error:
            raise UsageError(f"{self.where}: {key}: {error}") from None
