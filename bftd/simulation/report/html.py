"""HTML built as a tree, so that every text is escaped when it is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree.ElementTree import Element, tostring

Content = Element | str

# A line is never broken between a number and its unit.
_UNIT = re.compile(r"(?<=\d) (?=(?:s|min|h|days)\b)")


def tag(name: str, /, *children: Content, **attributes: str) -> Element:
    """Create an element; `class_` stands for class, and other underscores for dashes."""
    element = Element(name, {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()})
    return add(element, *children)


def add(element: Element, *children: Content) -> Element:
    """Append texts and elements in the given order."""
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif len(element):
            element[-1].tail = (element[-1].tail or "") + _glued(child)
        else:
            element.text = (element.text or "") + _glued(child)
    return element


def table(head: Sequence[str], rows: Sequence[Sequence[Content]]) -> Element:
    """Return a table whose first column names the rows; wide tables scroll by themselves."""
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    heads = [tag("th", text, scope="col") for text in head]
    made = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body))
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=f"Table: {head[0]}")


def _glued(text: str) -> str:
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def shown(text: str) -> str:
    """Return outside text with unprintable characters (controls, reversed writing) made visible."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def document(title: str, style: str, *body: Content) -> bytes:
    """Return the whole page as UTF-8."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        # nothing is loaded from anywhere, whatever the page contains
        tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        tag("title", title),
        tag("style", style),
    )
    html = tag("html", head, tag("body", *body), lang="en")
    # lone surrogates, which JSON may hold, cannot be encoded
    text: str = tostring(html, encoding="unicode", method="html")
    return f"<!doctype html>\n{text}\n".encode(errors="replace")
