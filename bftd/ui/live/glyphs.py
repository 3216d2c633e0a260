"""The characters of the charts: Unicode if the terminal has it, else ASCII."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of characters; each node state has its own, so that states differ even without colour."""

    levels: str
    states: Mapping[str, str]
    estimate: str
    measured: str
    current: str
    here: str
    across: str
    up: str
    corner: str
    plain: bool


UNICODE = Glyphs(
    levels="▁▂▃▄▅▆▇█",
    states={"regular": "█", "planned": "▒", "leased": "▓", "idle": "░", "away": "x"},
    estimate="·",
    measured="○",
    current="●",
    here="┊",
    across="─",
    up="│",
    corner="└",
    plain=False,
)
ASCII = Glyphs(
    levels="_.:-=+*#",
    states={"regular": "#", "planned": "=", "leased": "*", "idle": ".", "away": "x"},
    estimate=".",
    measured="o",
    current="@",
    here=":",
    across="-",
    up="|",
    corner="+",
    plain=True,
)

# Consoles whose fonts lack most of Unicode, whatever the locale says.
_POOR = ("linux", "vt100", "vt102", "vt220", "ansi", "cons25")


def suited(encoding: str | None, term: str) -> Glyphs:
    """Return the characters that a terminal of this encoding and $TERM can show."""
    try:
        unicode = codecs.lookup(encoding or "ascii").name in ("utf-8", "utf-16", "utf-32", "gb18030")
    except LookupError:
        unicode = False
    return UNICODE if unicode and term not in _POOR else ASCII
