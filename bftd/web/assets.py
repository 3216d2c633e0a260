"""The page's style sheet and script, and the policy that lets a browser run only these."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

_HERE = Path(__file__).parent
STYLE = (_HERE / "page.css").read_text(encoding="utf-8").strip()
SCRIPT = (_HERE / "page.js").read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# The page loads nothing but itself, and no site may frame it.
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
