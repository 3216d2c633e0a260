"""The documentation against the tree: no page is left out, no link is dead, no path is of a file that has moved."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import protocol_page, reference_pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
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


@pytest.mark.parametrize(("path", "text"), reference_pages.files().items(), ids=lambda part: getattr(part, "name", ""))
def test_the_generated_parts_are_what_the_code_says(path: Path, text: str) -> None:
    assert path.read_text(encoding="utf-8") == text, "run make docs"


def test_the_site_of_the_manual_is_built_without_a_warning_and_can_be_searched(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    found = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text())["docs"]
    pages = {entry["location"].partition("#")[0] for entry in found}
    assert len(pages) == len(list(DOCS.rglob("*.md")))


def test_the_page_of_the_protocol_shows_every_report_and_every_bound() -> None:
    assert protocol_page.unshown() == set()
