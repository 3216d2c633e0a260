"""Recorded text, bytes and JSON with a few faults: what a torn disk, a newer release or a liar makes of it."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

CPU_S = 10.0
"""What one example may take of the processor: far more than any needs, and far less than a loop without an end."""

WORDS = (
    *(
        "",
        " ",
        "\t",
        "\n",
        "\r\n",
        "\0",
        "\x1b[2J",
        "\x1c",
        "\x1f",
        "\x85",
        "\u2028",
        "\ufeff",
        "\ufffd",
        "é",
        "²",
        "٣",
    ),
    *("0", "-1", "+1", "1_0", "0x1f", "1.5", ".", "-", "1e5", "1e400", "-1e400", "nan", "inf", "-Infinity", "1:2:3"),
    *("2147483648", "4294967294", "9" * 18, "9" * 19, "9" * 400, "9" * 5000, f"1.{'0' * 400}", "0" * 5000),
    *("(null)", "N/A", "None", "NONE", "Unknown", "UNLIMITED", "INVALID", "ALL", "true", "null", "[]", "{}", '""'),
    *("n[1-3]", "n[1-", "n1-3]", "n[3-1]", "n[1-999999999]", "n[0-9][0-9]", "@all", "n*", "n1!n2", "n[1-2]-[3-4]"),
    *("=", ",", "|", ":", "a=b", "a=b=c", "%s", "{0}", "\\", "'", '"', "#", "<!--", "../..", "$(id)"),
    *(" " * 3000, "a" * 3000, "," * 3000, "=" * 3000, "[" * 3000, "(" * 3000, "9," * 3000, "a\n" * 3000),
)
"""Words in the place of others: empty and endless ones, odd letters, numbers beyond every type, half of a syntax."""

_WORD = re.compile(r"[^\s,=|:;\[\](){}\"'\x1f]+")
_ENDS = re.compile(r"(?<=\n)")

ODD_NUMBERS = (
    *(10**30, 10**18, 2**31, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**400, 10**4000, -1, -(2**63), -(10**400)),
    *(1e29, 1e308, -1e308, 5e-324, 0.5, math.nan, math.inf, -math.inf, -0.0, 0, 1),
)
_DEEP = 20

ODD_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([*ODD_NUMBERS, True, False, None, [], {}, "\ud800"]),
    st.sampled_from(WORDS),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner)),
    st.integers(1, 900).map(lambda depth: nested(depth)),
)
"""JSON values that nobody meant, in the place of others."""


def few(share: int = 1) -> settings:
    """Settings of a test whose examples cost `share` times as much as others: as many times fewer of them."""
    return settings(max_examples=max(5, settings.default.max_examples // share))


@contextmanager
def refused(*errors: type[BaseException]) -> Iterator[None]:
    """The block ends within `CPU_S` of this thread: well, or with one of the errors, whose text can be made.

    Whatever is in that text: who shows it makes it one printable line (bftd.base.command, bftd.http.api).
    """
    began_s = time.thread_time()
    try:
        yield
    except errors as error:
        str(error)
    assert time.thread_time() - began_s < CPU_S


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@st.composite
def texts(draw: st.DrawFn, samples: Sequence[str], most: int = 3) -> str:
    """One of the texts with lines and words dropped, doubled, swapped, replaced, or with its end cut off."""
    text = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(1, most))):
        how = draw(st.sampled_from(["word", "word", "word", "line", "swap", "join", "cut", "letter"]))
        if how == "word" and (found := list(_WORD.finditer(text))):
            word = draw(st.sampled_from(found))
            text = text[: word.start()] + draw(st.sampled_from(WORDS) | st.text(max_size=8)) + text[word.end() :]
        elif how in ("line", "swap", "join") and (lines := _ENDS.split(text)):
            at, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
            if how == "line":
                lines[at : at + 1] = [lines[at]] * draw(st.sampled_from([0, 2]))
            elif how == "swap":
                lines[at], lines[other] = lines[other], lines[at]
            else:
                lines[at] = lines[at].rstrip("\n")
            text = "".join(lines)
        elif text:
            at = draw(st.integers(0, len(text) - 1))
            text = text[:at] + ("" if how == "cut" else draw(st.sampled_from(WORDS)) + text[at + 1 :])
    return text


@st.composite
def contents(draw: st.DrawFn, samples: Sequence[bytes], most: int = 3) -> bytes:
    """One of the contents with bytes flipped, dropped, doubled, overwritten by zeros or others, or its end cut off."""
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.sampled_from([1, 1, 2, 8, 64, 512]))
        old = data[at : at + length]
        how = draw(st.sampled_from(["flip", "flip", "drop", "double", "zeros", "ones", "junk", "cut"]))
        new = {"drop": b"", "double": old + old, "zeros": bytes(len(old)), "ones": b"\xff" * len(old)}.get(how)
        if how == "flip" and old:
            new = bytes([old[0] ^ 1 << draw(st.integers(0, 7))]) + old[1:]
        elif how == "junk":
            new = draw(st.binary(max_size=16))
        data = data[:at] if how == "cut" else data[:at] + (new or b"") + data[at + length :]
    return data


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """The way to every value within a JSON value that is not very deep in it."""
    left: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while left:
        path, value = left.pop()
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            yield (*path, key)
            if len(path) < _DEEP:
                left.append(((*path, key), item))


def copied(value: Any) -> Any:
    """A copy of a JSON value, however deep."""
    top = [value]
    left: list[tuple[Any, Any]] = [(top, 0)]
    while left:
        holder, key = left.pop()
        if isinstance(holder[key], (dict, list)):
            holder[key] = inside = holder[key].copy()
            left += [(inside, each) for each in (inside if isinstance(inside, dict) else range(len(inside)))]
    return top[0]


@st.composite
def values(draw: st.DrawFn, samples: Sequence[Any], most: int = 3) -> Any:
    """One of the JSON values with some of its parts missing, doubled, or of another type or size."""
    data = copied(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, most))):
        found = list(places(data))
        if not found or draw(st.integers(0, 49)) == 0:
            return draw(ODD_VALUES)
        *way, last = draw(st.sampled_from(found))
        place = data
        for key in way:
            place = place[key]
        how = draw(st.sampled_from(["odd", "odd", "odd", "gone", "other", "more"]))
        if how == "gone":
            del place[last]
        elif how == "more" and isinstance(place, list):
            place *= draw(st.sampled_from([2, 40]))
        elif how == "more":
            place[draw(st.sampled_from(WORDS))] = place[last]
        elif how == "other":
            *from_, final = draw(st.sampled_from(found))
            source = data
            try:
                for key in from_:
                    source = source[key]
                place[last] = copied(source[final])
            except (KeyError, IndexError, TypeError):  # an earlier fault took it away
                continue
        else:
            place[last] = draw(ODD_VALUES)
    return data


def written(value: Any) -> str:
    """A JSON value as Python writes it, numbers that JSON does not have included."""
    return json.dumps(value)


def documents(samples: Sequence[Any], most: int = 3) -> st.SearchStrategy[str]:
    """The text of a JSON value with faults in its parts, in its text, or in both."""
    told = [json.dumps(sample, indent=1) for sample in samples]
    deep = st.sampled_from(["[" * 100_000, '{"a":' * 100_000, '[{"a":' * 50_000, "9" * 100_000, "-", "\ufeff{}", ""])
    return values(samples, most).map(written) | texts(told, most) | deep
