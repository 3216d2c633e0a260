"""Workers' output as lines for the trainer's log: progress bars thinned out, endless lines cut into pieces."""

from __future__ import annotations

import codecs
import re

from elastic.base.timing import BAR_S, OUT_BURST_BYTES, OUT_BYTES_S

_PIECE = 32 * 1024
"""The longest line forwarded whole, in characters; a character may take twelve bytes in a message."""

_UP = "\x1b[A"
"""The cursor goes up a line: a bar below another one ends its turn with it."""

_END = re.compile(r"[\r\n]|\x1b\[A")

_LINE_BYTES = 512
"""The cost of a line beyond its length: a short line is as much work for the driver as one of this length."""


class OutputAllowance:
    """The allowed rate of a node's output: `OUT_BYTES_S` in the long run, `OUT_BURST_BYTES` at once."""

    def __init__(self) -> None:
        self._left_bytes = float(OUT_BURST_BYTES)
        self._at_s: float | None = None

    def take(self, line: str, now_s: float) -> float:
        """Count a line; returns the seconds that the next one has to wait."""
        since_s = now_s - self._at_s if self._at_s is not None else 0.0
        self._at_s = now_s
        self._left_bytes = min(OUT_BURST_BYTES, self._left_bytes + since_s * OUT_BYTES_S) - len(line) - _LINE_BYTES
        return max(0.0, -self._left_bytes / OUT_BYTES_S)


class LineSplitter:
    """A splitter of output into lines, as it arrives; times are seconds of the caller's monotonic clock.

    A carriage return ends one state of a progress bar, which the next state overwrites: one state is returned every
    `BAR_S`, and always the last. A line that ends in a carriage return and a newline has one state only, the last. Bars
    below each other are treated as one: the code that draws the lower one goes a line down, and up again.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._in_bar = False
        self._went_up = False
        self._bar = ""
        self._shown = ""
        self._shown_s = float("-inf")

    @property
    def due_s(self) -> float | None:
        """The time when `flush` has something to return even if no more output comes; None if there is nothing."""
        return self._shown_s + BAR_S if self._state() else None

    def feed(self, data: bytes, now_s: float) -> list[str]:
        """Return the lines that are complete with `data`."""
        text = self._rest + self._decoder.decode(data)
        lines: list[str] = []
        start = 0
        for end in _END.finditer(text):
            if end[0] == _UP and not self._in_bar:
                continue
            self._end(text[start : end.start()], end[0], now_s, lines)
            start = end.end()
        self._rest = text[start:]
        while len(self._rest) > _PIECE:
            lines.append(self._rest[:_PIECE])
            self._rest = self._rest[_PIECE:]
        return lines

    def flush(self, now_s: float) -> list[str]:
        """Return the current state of a progress bar if it is due."""
        state = self._state()
        if not state or now_s < self._shown_s + BAR_S:
            return []
        self._show(state, now_s)
        return [state]

    def end(self) -> list[str]:
        """Return the rest at the end of the output, with or without a line end."""
        self._rest += self._decoder.decode(b"", final=True)
        left, self._bar, self._rest = self._state() or ("" if self._in_bar else self._rest), "", ""
        return [left] if left else []

    def _state(self) -> str:
        """Return the state of a progress bar that was not shown yet, blank if there is none."""
        if not self._in_bar:
            return ""
        state = self._rest if self._rest.strip() else self._bar
        return state if state.strip() and state != self._shown else ""

    def _end(self, line: str, end: str, now_s: float, lines: list[str]) -> None:
        went_up, self._went_up = self._went_up, end == _UP
        if end == "\n" and went_up and not line.strip():
            return
        if end != "\n":
            self._in_bar = True
            if line.strip():
                self._bar = line
                if line != self._shown and now_s >= self._shown_s + BAR_S:
                    self._show(line, now_s)
                    lines.append(line)
            return
        if self._in_bar and not line.strip():
            # The cursor went back and nothing was written over the bar: its last state is what remains.
            line = self._bar
        if not (self._in_bar and line == self._shown and line):
            lines += [line[at : at + _PIECE] for at in range(0, len(line), _PIECE)] or [""]
        self._in_bar, self._bar, self._shown = False, "", ""

    def _show(self, state: str, now_s: float) -> None:
        self._shown, self._shown_s = state, now_s
