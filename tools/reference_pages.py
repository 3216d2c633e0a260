"""The generated parts of the manual: `python -m tools.reference_pages` writes them, and so does `make docs`.

A page has a generated section between the marks `<!-- NAME -->` and `<!-- end of NAME -->`; all else is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from bftd import config_file
from bftd.config import keys
from slurm_plugin.site import RULES
from tools import monitoring, protocol_page, slurm_releases

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "protocol.md": protocol_page.SECTIONS,
    "monitoring.md": monitoring.SECTIONS,
    "slurm.md": {"releases": lambda: f"\n{slurm_releases.table()}\n\n"},
    "site.md": {"rules": lambda: f"\n{_rules()}\n\n"},
    "configuration.md": {"keys": lambda: f"\n```toml\n{config_file.to_toml(keys.Config()).strip()}\n```\n\n"},
}


def files() -> dict[Path, str]:
    """Every file with a generated part, as it should be; raises ValueError for a page without its marks."""
    pages = {FOLDER / name: filled(FOLDER / name, sections) for name, sections in PAGES.items()}
    return pages | monitoring.files()


def filled(path: Path, sections: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with its sections made anew."""
    page = path.read_text(encoding="utf-8")
    for name, make in sections.items():
        marks = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)
        page, count = marks.subn(make().replace("\\", r"\\"), page)  # in a replacement a backslash escapes
        if count != 1:
            raise ValueError(f"{path} has {count} sections {name!r}, not one")
    return page


def _rules() -> str:
    """Return the rules for a site's Slurm as a Markdown table."""
    rows = ["| line | right | else | why | what another value costs |", "|---|---|---|---|---|"]
    rows += [f"| {rule.name} | {rule.right} | {rule.wrong} | {rule.why} | {rule.loses} |" for rule in RULES]
    return "\n".join(rows)


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
