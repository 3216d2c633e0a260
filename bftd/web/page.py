"""The whole page of one moment. Pure but for its style and script, which are files beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from bftd.web.assets import CSP, SCRIPT, STYLE

# The ranges that the page shows, the default one first.
HOURS = (24, 1, 6, 168)

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


@dataclass(frozen=True, slots=True)
class Shown:
    """What one page is made of: a folded status, a history and usage as the API answers them for the same caller.

    `usage` is None for a caller who has no name, and so none of his own.
    """

    status: Mapping[str, Any]
    history: Mapping[str, Any]
    usage: Mapping[str, Any] | None
    hours: int


def render(shown: Shown) -> bytes:
    """The page as UTF-8."""
    status = shown.status
    body = f"<h1>bftd</h1><p>{escape(status['version'])} {escape(status['mode'])}</p>"
    body += "".join(f"<p>{escape(item['name'])}</p>" for item in status["trainers"])
    head = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>bftd</title><style>{STYLE}</style></head>'
    )
    return f"{head}<body>{body}<script>{SCRIPT}</script></body></html>".encode()
