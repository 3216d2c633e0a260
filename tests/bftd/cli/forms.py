"""The tables of docs/reference/json.md: which fields a command prints with `--json`."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "json.md"
# Its fields are the keys that can be tuned, which docs/reference/configuration.md lists.
BY_KEY = frozenset({"bft tune"})


class Form(NamedTuple):
    """The fields that are always there, and those that may be."""

    always: frozenset[str]
    may: frozenset[str]

    def fits(self, fields: Collection[str]) -> bool:
        """Whether an object with these fields is as the table says."""
        return self.always <= set(fields) - {"format"} <= self.always | self.may


@cache
def forms() -> dict[str, Form]:
    """By command, with an option where that makes it another."""
    found = {}
    for section in re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        always, may = set(), set()
        for cell in re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE):
            names = re.findall(r"`(\w+)`", cell.partition("(")[0])
            (may if "(" in cell else always).update(names)
        for command in title.strip("` ").split("`, `"):
            found[command] = Form(frozenset(always), frozenset(may))
    return found


def unlike(command: str, fields: Collection[str]) -> str:
    """What is wrong with these fields of a command's object; "" where it is as the page says."""
    if command in BY_KEY:
        return ""
    fits = [form for title, form in forms().items() if title == command or title.startswith(f"{command} --")]
    if any(form.fits(fields) for form in fits):
        return ""
    return f"docs/reference/json.md has no table of {command} with {sorted(fields)}"
