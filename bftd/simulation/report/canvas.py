"""Conversion of matplotlib figures to SVG elements of the page, with its colours and fonts and no separate files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

from bftd.base.errors import UsageError
from bftd.simulation.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[["Axes", bool], None]

# Width and height in CSS pixels; the style sheet shows the one that fits the screen.
_WIDE = (720, 300)
_NARROW = (344, 270)
# Height of the title of a picture in a separate file.
_TITLE = 36
_XLINK = "http://www.w3.org/1999/xlink"

# Makes the same figure give the same text on any day: no date, and clip path names that depend on their content.
_RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "bftd",
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.titlecolor": style.MUTED.light,
    "axes.titlepad": 10,
    "axes.labelcolor": style.MUTED.light,
    "axes.edgecolor": style.MUTED.light,
    "axes.linewidth": 0.8,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": style.GRID.light,
    "grid.linewidth": 1.0,
    "text.color": style.INK.light,
    "text.parse_math": False,
    "xtick.color": style.MUTED.light,
    "xtick.labelcolor": style.MUTED.light,
    "ytick.color": style.MUTED.light,
    "ytick.labelcolor": style.MUTED.light,
    "ytick.left": False,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "figure.constrained_layout.use": True,
}
_FONT = re.compile(r"font-family:[^;]*;?|font: *([\d.]+px)[^;]*")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


def version() -> str:
    """Return the version of matplotlib; raise UsageError if it is missing."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError("the plots of a report need matplotlib: pip install 'bftd[plot]'") from None
    return str(matplotlib.__version__)


def plot(name: str, alt: str, draw: Draw, *, height: int | None = None) -> list[Element]:
    """Draw one picture for wide screens and one for phones; `draw` is told which, and `name` is unique on the page."""
    made = []
    for kind, (width, usual) in (("wide", _WIDE), ("narrow", _NARROW)):
        root = fromstring(_svg(draw, width, height or usual, narrow=kind == "narrow"))
        made.append(_inlined(root, f"{name}-{kind}", kind, alt))
    return made


def standalone(drawn: Element, title: str) -> bytes:
    """Return one picture of `plot` as a separate SVG file with its title on top, opaque for use on any page."""
    x, y, width, height = map(float, drawn.attrib["viewBox"].split())
    box = {"x": f"{x:g}", "y": f"{y - _TITLE:g}", "width": f"{width:g}", "height": f"{height + _TITLE:g}"}
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "xmlns:xlink": _XLINK, "role": "img"})
    root.attrib |= {"viewBox": " ".join(box.values()), "width": box["width"], "height": box["height"]}
    SubElement(root, "title").text = title
    SubElement(root, "style").text = style.SVG_CSS
    SubElement(root, "rect", box | {"style": f"fill:var(--{style.PAPER.role})"})
    at = {"x": f"{x + 12:g}", "y": f"{y - _TITLE + 26:g}", "style": f"font-size:16px;fill:var(--{style.INK.role})"}
    SubElement(root, "text", at | {"font-weight": "600"}).text = title
    root.extend(drawn)
    for element in root.iter("use"):
        # HTML knows only href; some viewers of SVG files know only xlink:href
        element.attrib |= {"xlink:href": element.attrib["href"]} if "href" in element.attrib else {}
    return f"{tostring(root, encoding='unicode')}\n".encode()


def _svg(draw: Draw, width: int, height: int, *, narrow: bool) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_RC):
        # at 72 dots per inch a matplotlib point is a pixel of the page
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        draw(figure.add_subplot(), narrow)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return text.getvalue()


def _inlined(root: Element, name: str, kind: str, alt: str) -> Element:
    """Rewrite SVG for use inside HTML, which has no namespaces; its ids are prefixed, as they share the page's."""
    for parent in root.iter():
        for child in list(parent):
            if child.tag.endswith("}metadata") or child.tag.endswith("}style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: _value(key, value, name) for key, value in element.attrib.items()}
        element.text, element.tail = _trimmed(element.text), None
    view = root.attrib["viewBox"]
    root.attrib = {"class": f"plot {kind}", "viewBox": view, "role": "img", "aria-label": alt}
    return root


def _value(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key.endswith("href"):
        return f"#{name}-{value.removeprefix('#')}"
    if key == "style":
        value = _FONT.sub(lambda match: f"font-size:{match[1]}" if match[1] else "", value)
        for color in style.COLORS:
            value = value.replace(color.light, f"var(--{color.role})")
    return _REFERENCE.sub(rf"url(#{name}-\1)", " ".join(value.split()))


def _trimmed(text: str | None) -> str | None:
    return text if text and text.strip() else None
