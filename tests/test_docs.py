"""The documentation against the tree: no page is left out, no link is dead, no path is of a file that has moved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import protocol_page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
# The first folders of the paths that a page may name in backquotes.
_OURS = "bftd|benchmarks|docs|elastic|examples|milp|slurm_plugin|systemd|tests|tools"
_PATH = re.compile(rf"`((?:{_OURS})/[\w./-]*)`")
_RULE_ROW = re.compile(r"^\| ([SL]\d+b?) [^|]*\|[^|]*\|([^|]*)\|([^|]*)\|$", re.MULTILINE)


def without_code(text: str) -> str:
    """A page's text but for its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """The targets of a page's links and pictures that lead to no other site."""
    found = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text()))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    dead = []
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_path_in_backquotes_is_there(page: Path) -> None:
    named = _PATH.findall(without_code(page.read_text()))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_index_lists_every_page() -> None:
    listed = {target.partition("#")[0] for target in links(DOCS / "README.md")}
    assert {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"README.md"} <= listed


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("name", ["README.md", "setup.cfg", "tools/package/debian/control", "tools/package/bftd.spec"])
def test_no_front_page_promises_what_the_figures_deny(name: str) -> None:
    text = " ".join((ROOT / name).read_text().split()).lower()
    assert not re.search(r"at no cost|costs? nothing|pays nothing|as fast as on an empty", text)


def test_every_rule_names_modules_and_tests_that_bear_its_name() -> None:
    rows = _RULE_ROW.findall((DOCS / "architecture.md").read_text())
    assert [rule for rule, _, _ in rows] == ["S1", "S1b", *(f"S{n}" for n in range(2, 11)), "L1", "L2", "L3", "L4"]
    for rule, modules, tests in rows:
        assert _PATH.findall(modules), f"{rule} names no module"
        paths = _PATH.findall(tests)
        assert paths, f"{rule} names no test"
        for path in paths:
            assert re.search(rf"def test_(?:\w+_)?{rule}_", (ROOT / path).read_text()), f"no test of {rule} in {path}"


def test_the_page_of_the_protocol_is_what_the_code_says() -> None:
    page = protocol_page.PAGE.read_text()
    assert protocol_page.filled(page) == page, "run python -m tools.protocol_page"


def test_the_page_of_the_protocol_shows_every_report_and_every_bound() -> None:
    assert protocol_page.unshown() == set()
