"""Text in styles, wrapped to a width: what `bft status` is made of.

It is drawn with nothing but escape sequences, since a library of terminals takes longer to load than the daemon to
answer; rich can draw it too. A style is some of the names of `_CODES` with blanks between.
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
    """Whatever comes to lines."""

    def lines(self, width: int | None) -> Iterator[Line]:
        """The lines in a width of so many columns; None is as wide as anybody likes."""


class ByRich:
    """Whatever comes to lines, drawn by rich: a live view, say."""

    def lines(self, width: int | None) -> Iterator[Line]:
        """See Drawn."""
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it in the width that there is."""
        from rich.text import Text

        for line in self.lines(options.max_width):
            yield Text.assemble(*line, no_wrap=True, overflow="ignore")


class Words(ByRich):
    """A paragraph: texts in styles, broken at blanks where it is wider than there is room."""

    def __init__(self, text: str = "", style: str = "") -> None:
        self._parts = [(text, style)] if text else []

    def append(self, text: str, style: str = "") -> Words:
        """Add text at its end; a line break begins a new line."""
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


class Block(ByRich):
    """Several of them, one below the other."""

    def __init__(self, parts: Iterable[Drawn]) -> None:
        self._parts = tuple(parts)

    def lines(self, width: int | None) -> Iterator[Line]:
        """See Drawn."""
        for part in self._parts:
            yield from part.lines(width)


def escaped(line: Line, colours: bool) -> str:
    """A line with the escape sequences of its styles; without `colours` those of bold and dim alone."""
    return "".join(_escaped(text, style, colours) for text, style in line)


def plain(line: Line) -> str:
    """The text of a line."""
    return "".join(text for text, _ in line)


def folded(text: str, width: int) -> Iterator[str]:
    """Lines of at most `width`, broken at a blank or behind a comma where there is one."""
    while cell_len(text) > width:
        whole = chop_cells(text, width)[0]
        # a blank may be the very next character
        blank, comma = text.rfind(" ", 0, len(whole) + 1), whole.rfind(",") + 1
        end = max(blank, comma) if max(blank, comma) > 0 else len(whole)
        yield text[:end].rstrip()
        text = text[end:].lstrip()
    yield text


def restyled(line: str, style: str, spans: Iterable[tuple[int, int, str]]) -> Line:
    """A line in a `style`, but for spans from one cell to another, in order, which have styles of their own."""
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
