"""The whole page at one moment; pure but for its style and script, which are files next to it."""

from __future__ import annotations

import base64
import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftd.base.format import clock, period
from bftd.web import sections
from bftd.web.history import Drawn
from bftd.web.html import text

_HERE = Path(__file__).parent
STYLE = (_HERE / "page.css").read_text(encoding="utf-8").strip()
SCRIPT = (_HERE / "page.js").read_text(encoding="utf-8").strip()


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


# A browser runs only this style and script; the page loads nothing but itself, and no site may frame it.
CSP = "; ".join(
    [
        "default-src 'none'",
        f"script-src {_hash(SCRIPT)}",
        f"style-src {_hash(STYLE)}",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)

# The time ranges of the page and their resolution: hours -> seconds of a step.
STEPS: Mapping[int, float] = {1: 60.0, 6: 180.0, 24: 600.0, 168: 3600.0}
DEFAULT_HOURS = 24

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Vary": "Accept-Encoding",
}

# A browser without JavaScript reloads the whole page after so many seconds.
_AGAIN_S = 60
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E"
    "%3Cpath fill='%236b7785' d='M0 0h8v8H0z'/%3E%3Cpath fill='%2356b4e9' d='M0 5l3-3 2 2 3-2v6H0z'/%3E%3C/svg%3E"
)


@dataclass(frozen=True, slots=True)
class PageData:
    """The contents of one page, as the API answers them for the same caller.

    `status` has its nodes folded. `groups` are all nodes by `state` (one of `bftd.core.sampling`), `why`, `nodes`
    (folded) and `count`. `usage` is None for a caller who is not identified; `all_` says that they see all users.
    `missing` says why there is no history, if that is a fault.
    """

    place: str
    status: Mapping[str, Any]
    groups: Sequence[Mapping[str, Any]]
    past: Drawn
    windows: Sequence[Mapping[str, Any]]
    usage: Mapping[str, Any] | None
    all_: bool
    hours: int
    missing: str = ""


def render(shown: PageData) -> bytes:
    """Return the page as UTF-8."""
    status, past, hours = shown.status, shown.past, shown.hours
    states = Counter[str]()
    for group in shown.groups:
        states[group["state"]] += group["count"]
    parts = [
        ("now", "Now", sections.tiles(status, states, shown.windows) + sections.shadowed(status)),
        ("machine", "The machine", past.machine or sections.nothing_recorded(status)),
        ("trainers", "Trainers", past.trainers + sections.trainers(status, past.roles)),
        ("efficiency", "Efficiency", sections.efficiency(past.efficiency, shown.windows)),
        ("usage", "Node-hours", sections.usage(shown.usage, hours, shown.all_, shown.missing)),
        ("decisions", "Last decisions", sections.decisions(status["decisions"])),
        ("nodes", "Nodes now", sections.nodes(status, shown.groups, shown.place)),
    ]
    notices = sections.notices(status, shown.missing)
    return document(shown.place, shown.place, status, ranges(hours), notices + sections.joined(parts))


def document(title: str, place: str, status: Mapping[str, Any], nav: str, main: str) -> bytes:
    """Return a whole document as UTF-8: a head, `nav` (HTML) beside it, and `main` (HTML) below."""
    zone = time.strftime("%Z", time.localtime(status["time_s"]))
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>bftd · {text(title)}</title><link rel="icon" href="{_ICON}"><style>{STYLE}</style>'
        f'<noscript><meta http-equiv="refresh" content="{_AGAIN_S}"></noscript></head>'
    )
    body = (
        "<a class=skip href=#main>Skip to the state</a>"
        f"<header><div><h1>bftd <span>{text(place)}</span></h1>{_mood(status)}</div>{nav}</header>"
        "<p id=gone role=status aria-live=polite></p>"
        f"<main id=main tabindex=-1>{main}</main>"
        f"<footer><p>bftd {text(status['version'])}. Times are {text(zone)}, those of the daemon's "
        "host. Nothing can be changed here: <code>bft --help</code>.</footer>"
    )
    return f"{head}<body>{body}<script>{SCRIPT}</script></body></html>\n".encode()


def ranges(hours: int) -> str:
    """Return links to the time ranges."""
    links = "".join(
        f'<a href="?hours={each}"{" aria-current=page" if each == hours else ""}>{period(each * 3600)}</a>'
        for each in STEPS
    )
    return f'<nav aria-label="Time shown">{links}</nav>'


def _mood(status: Mapping[str, Any]) -> str:
    """Return the daemon's mode, and the age of its data."""
    age_s = status["snapshot_age_s"]
    read = "Slurm was not read yet" if age_s is None else f"Slurm was read {age_s:.1f} s before"
    at = f"<span id=asof>As of <time>{clock(status['time_s'])}</time>; {read}.</span>"
    if status["mode"] == "shadow":
        return (
            "<p class=mood><b class=shadow>Shadow mode</b> Nothing is submitted, lent or cancelled: imaginary trainers "
            f"show what would be. {at}"
        )
    if status.get("hold"):
        return f"<p class=mood><b class=held>On hold</b> {at}"
    return f"<p class=mood><b class=live>Harvesting</b> {at}"
