"""The rows of a trace as CSV text, read and written in numpy without a Python object per field.

The text is `time_s,node,idle`, a header line first. Reading finds all line ends and commas at once and gathers each
column into an array of fixed-width byte strings. Only a faulty text is searched for its first bad row, which is named
with its line number, the header being line 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bftd.simulation.trace.errors import TraceError

HEADER = b"time_s,node,idle"
# The line number of the first row.
FIRST_LINE = 2
# Longer fields than these are not times or names, and would make the arrays large.
_TIME_WIDTH = 32
_NAME_WIDTH = 128
_CHUNK_ROWS = 65536

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TraceRows:
    """The columns: seconds, the distinct names in sorted order, the index of each row's name, and 1 for joining."""

    times_s: NDArray[np.float64]
    names: tuple[str, ...]
    node: NDArray[np.int32]
    idle: NDArray[np.bool_]


def read(text: bytes, where: str) -> TraceRows:
    """Read the text of the file `where`; raise TraceError unless it is a header and complete rows of three fields."""
    header, _, body = text.partition(b"\n")
    if header.endswith(b"\r"):
        header, body = header[:-1], body.replace(b"\r\n", b"\n")
    if header != HEADER:
        shown = header[:60].decode("utf-8", "replace")
        raise TraceError(f"{where}, line 1: the columns must be {HEADER.decode()!r}, not {shown!r}")
    if not body:
        raise TraceError(f"{where} holds no rows: nothing was idle, or the file is cut short")
    if b"\0" in body:
        raise TraceError(f"{where} holds zero bytes: it is no text, or was cut by a crash")
    if not body.endswith(b"\n"):
        body += b"\n"
    data = np.frombuffer(body, dtype=np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    commas = np.flatnonzero(data == ord(","))
    starts = np.concatenate(([0], ends[:-1] + 1))
    if len(commas) != 2 * len(ends):
        raise _columns(where, starts, ends, commas, body)
    first, second = commas[0::2], commas[1::2]
    if not ((starts <= first) & (second < ends)).all():
        raise _columns(where, starts, ends, commas, body)
    times_s = _times(data, starts, first, where)
    names, node = _names(data, first + 1, second, where)
    return TraceRows(times_s, names, node, _idle(data, second + 1, ends, where))


def written(
    nodes: tuple[str, ...], times_s: NDArray[np.float64], node: NDArray[np.int32], idle: NDArray[np.bool_]
) -> bytes:
    """Return header and rows; whole seconds are written without a fraction, others so that they read back the same."""
    lines = [HEADER.decode()]
    for time_s, index, joins in zip(times_s.tolist(), node.tolist(), idle.tolist(), strict=True):
        lines.append(f"{seconds(time_s)},{nodes[index]},{1 if joins else 0}")
    lines.append("")
    return "\n".join(lines).encode()


def seconds(time_s: float) -> str:
    """Format a time as rows hold it."""
    return str(int(time_s)) if time_s.is_integer() else repr(time_s)


def _times(data: Bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], where: str) -> NDArray[np.float64]:
    allowed = np.zeros(256, dtype=bool)
    allowed[np.frombuffer(b"\x000123456789.eE+-", dtype=np.uint8)] = True
    words = _column(data, starts, ends, _TIME_WIDTH, "time_s", where)
    try:
        if allowed[words.view(np.uint8)].all():
            return words.astype(np.float64)
    except ValueError:
        pass
    raise _first_bad(words, _is_time, where, "is not a time in seconds")


def _is_time(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return set(word) <= set(b"0123456789.eE+-")


def _names(
    data: Bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], where: str
) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    words = _column(data, starts, ends, _NAME_WIDTH, "node", where)
    distinct, node = np.unique(words, return_inverse=True)
    if not all(map(_is_name, distinct.tolist())):
        raise _first_bad(words, _is_name, where, "is not a node name")
    return tuple(word.decode() for word in distinct.tolist()), node.astype(np.int32)


def _is_name(word: bytes) -> bool:
    return word.isascii() and all(33 <= char <= 126 and char not in b"\"'" for char in word) and bool(word)


def _idle(data: Bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], where: str) -> NDArray[np.bool_]:
    digit = data[np.minimum(starts, len(data) - 1)]
    right = (ends - starts == 1) & ((digit == ord("0")) | (digit == ord("1")))
    if not right.all():
        row = int(np.argmin(right))
        word = data[starts[row] : ends[row]].tobytes()
        raise TraceError(f"{where}, line {row + FIRST_LINE}: idle must be 1 or 0, not {_shown(word)}")
    joins: NDArray[np.bool_] = digit == ord("1")
    return joins


def _column(
    data: Bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], most: int, name: str, where: str
) -> NDArray[np.bytes_]:
    """Gather the fields from `starts` to `ends` into fixed-width strings, a chunk of rows at a time."""
    lengths = ends - starts
    width = int(lengths.max())
    if width > most or int(lengths.min()) == 0:
        row = int(np.argmax((lengths > most) | (lengths == 0)))
        what = f"longer than {most} characters" if lengths[row] else "missing"
        raise TraceError(f"{where}, line {row + FIRST_LINE}: the field {name} is {what}")
    gathered = np.zeros((len(starts), width), dtype=np.uint8)
    offsets = np.arange(width)
    for chunk in range(0, len(starts), _CHUNK_ROWS):
        rows = slice(chunk, chunk + _CHUNK_ROWS)
        places = np.minimum(starts[rows, None] + offsets, len(data) - 1)
        gathered[rows] = np.where(offsets < lengths[rows, None], data[places], 0)
    return gathered.view(f"S{width}")[:, 0]


def _first_bad(words: NDArray[np.bytes_], right: Callable[[bytes], bool], where: str, what: str) -> TraceError:
    """Return the error for the first bad word. There is one: the whole column was refused, if only for a zero byte."""
    row, word = next(((row, word) for row, word in enumerate(words.tolist()) if not right(word)), (0, words[0]))
    return TraceError(f"{where}, line {row + FIRST_LINE}: {_shown(word)} {what}")


def _columns(
    where: str, starts: NDArray[np.int64], ends: NDArray[np.int64], commas: NDArray[np.int64], body: bytes
) -> TraceError:
    """Return the error for the first row that does not have two commas."""
    counts = np.searchsorted(commas, ends) - np.searchsorted(commas, starts)
    row = int(np.argmax(counts != 2))
    line = body[int(starts[row]) : int(ends[row])]
    return TraceError(f"{where}, line {row + FIRST_LINE}: a row is {HEADER.decode()}, not {_shown(line)}")


def _shown(word: bytes) -> str:
    return repr(word[:60].decode("utf-8", "replace"))
