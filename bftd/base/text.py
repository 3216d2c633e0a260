"""Text in styles, wrapped to a width: the building blocks of `bft status`.

It is drawn with escape sequences only, because a terminal library takes longer to load than the daemon to answer; rich
can draw it too. A style is some of the names in `_CODES`, separated by blanks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from rich.cells import cell_len, chop_cells

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

# One line of a screen: texts, each in a style.
Line = Sequence[tuple[str, str]]

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"}
_CODES = {"bold": "1", "dim": "2"} | _COLOURS


class Drawn(Protocol):
    """Anything that can be drawn as lines."""

    def lines(self, width: int | None) -> Iterator[Line]:
        """Yield the lines for `width` columns; None means unlimited."""


class ByRich:
    """Anything that can be drawn as lines, drawable by rich: for a live view, say."""

    def lines(self, width: int | None) -> Iterator[Line]:
        """See Drawn."""
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it in the available width."""
        from rich.text import Text

        for line in self.lines(options.max_width):
            yield Text.assemble(*line, no_wrap=True, overflow="ignore")


class Words(ByRich):
    """A paragraph of texts in styles, broken at blanks where it is too wide."""

    def __init__(self, text: str = "", style: str = "") -> None:
        self._parts = [(text, style)] if text else []

    def append(self, text: str, style: str = "") -> Words:
        """Append text; a line break begins a new line."""
        self._parts.append((text, style))
        return self

    def lines(self, width: int | None) -> Iterator[Line]:
        """See Drawn."""
        line: list[tuple[str, str]] = []
        for text, style in self._parts:
            first, *others = text.split("\n")
            line.append((first, style))
            for other in others:
                yield from _wrapped(line, width)
                line = [(other, style)]
        yield from _wrapped(line, width)


class Stack(ByRich):
    """Several drawable parts, one below the other."""

    def __init__(self, parts: Iterable[Drawn]) -> None:
        self._parts = tuple(parts)

    def lines(self, width: int | None) -> Iterator[Line]:
        """See Drawn."""
        for part in self._parts:
            yield from part.lines(width)


def escaped(line: Line, colours: bool) -> str:
    """Return a line with the escape sequences of its styles; without `colours` only those of bold and dim."""
    return "".join(_escaped(text, style, colours) for text, style in line)


def plain(line: Line) -> str:
    """Return the text of a line."""
    return "".join(text for text, _ in line)


def folded(text: str, width: int) -> Iterator[str]:
    """Yield lines of at most `width`, broken at a blank or after a comma if there is one."""
    while cell_len(text) > width:
        whole = chop_cells(text, width)[0]
        # a blank may be the very next character
        blank, comma = text.rfind(" ", 0, len(whole) + 1), whole.rfind(",") + 1
        end = max(blank, comma) if max(blank, comma) > 0 else len(whole)
        yield text[:end].rstrip()
        text = text[end:].lstrip()
    yield text


def restyled(line: str, style: str, spans: Iterable[tuple[int, int, str]]) -> Line:
    """Return a line in `style`, except for spans of cells, in order, which have styles of their own."""
    parts, at = [], 0
    for start, end, own in spans:
        if own and start < len(line):
            parts += [(line[at:start], style), (line[start:end], own)]
            at = end
    return [*(part for part in parts if part[0]), (line[at:], style)]


def _wrapped(line: Line, width: int | None) -> Iterator[Line]:
    text = plain(line)
    if width is None or cell_len(text) <= width:
        yield line
        return
    styles = [style for part, style in line for _ in part]
    at = 0
    for piece in folded(text, width):
        at = text.index(piece, at)
        styled = zip(piece, styles[at:], strict=False)
        yield [("".join(letter for letter, _ in run), style) for style, run in groupby(styled, itemgetter(1))]
        at += len(piece)


def _escaped(text: str, style: str, colours: bool) -> str:
    codes = [_CODES[name] for name in style.split() if colours or name not in _COLOURS]
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes and text else text
