"""Tests assert messages by key: tests/messages holds the words, and is held to the programs here."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import messages

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PROGRAMS = ("milp", "bftd", "elastic", "sizing", "slurm_plugin", "studies", "benchmarks")

RUN = 4
"""So many words in a row are a sentence of the programs: fewer are a name, a number with its unit, or chance."""

_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_OTHER = re.compile(r"[^A-Za-z' ,:;()-]")
_PLACEHOLDER = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?[sdrgfu]")


def test_a_message_is_in_the_words_of_the_programs() -> None:
    """Where the words of a program change, the entry changes with them, and no test."""
    stale = {
        f"{key}: {part.strip()}"
        for key, template in messages.catalogue().items()
        for before, *_ in string.Formatter().parse(template)
        for part in re.split(r"[,;:()]", before)
        if not _is_said(part.split())
    }
    assert stale == set()


def test_a_message_that_no_test_asserts_is_taken_out() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    used = set(re.findall(r'"([a-z_0-9]+(?:\.[a-z_0-9]+)+)"', tests))
    assert set(messages.catalogue()) - used == set()


def test_a_message_has_one_key() -> None:
    keys: dict[str, list[str]] = {}
    for key, template in messages.catalogue().items():
        keys.setdefault(template, []).append(key)
    assert [several for several in keys.values() if len(several) > 1] == []


def test_tests_assert_keys_and_not_sentences() -> None:
    """A sentence that a test puts in itself, or that Slurm or an operating system says, is data."""
    programs = {run for text in _texts() for run in _runs(text)}
    found = [
        f"{path.relative_to(ROOT)}:{constant.lineno}: {constant.value}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "docs" not in path.parts  # what a documented session shows is data
        for constant in _asserted(ast.parse(path.read_text(encoding="utf-8")))
        if not programs.isdisjoint(_runs(constant.value))
    ]
    assert not found, "\n".join(found)


def _asserted(tree: ast.Module) -> Iterator[ast.Constant]:
    """The texts within what is asserted, compared or matched, and within the cases of a test."""
    seen: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Assert):
            parts = [node.test]
        elif isinstance(node, ast.Compare):
            parts = [node]
        elif isinstance(node, ast.keyword) and node.arg == "match":
            parts = [node.value]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = node.decorator_list
        for inner in (inner for part in parts for inner in ast.walk(part)):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and id(inner) not in seen:
                seen.add(id(inner))
                yield inner


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    """All runs of RUN words; a number, a path and what else is no word ends a run."""
    for part in _OTHER.split(text):
        words = _WORD.findall(part)
        yield from (tuple(words[at : at + RUN]) for at in range(len(words) - RUN + 1))


def _is_said(words: list[str]) -> bool:
    """Whether programs say the words, which they may put together of texts; two words alone say too little."""
    return len(words) < 3 or any(
        " ".join(words[:at]) in _said() and _is_said(words[at:]) for at in range(len(words), 0, -1)
    )


@cache
def _said() -> str:
    """All texts of the programs, a line each."""
    return "\n".join(" ".join(part.split()) for text in _texts() for part in _PLACEHOLDER.split(text))


@cache
def _texts() -> tuple[str, ...]:
    """The constant texts of the programs, without docstrings."""
    found: list[str] = []
    for path in (path for top in PROGRAMS for path in sorted((ROOT / top).rglob("*"))):
        if path.suffix == ".py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            found += [
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
            ]
        elif path.suffix in (".lua", ".c", ".h"):
            joined = re.sub(r'"\s*\n\s*"', "", path.read_text(encoding="utf-8"))
            found += [text.replace("\\n", "\n") for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', joined)]
            found += re.findall(r"'((?:[^'\\\n]|\\.)*)'", joined)
    return tuple(found)
