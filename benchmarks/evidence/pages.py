"""The figures on pages: what stands between `<!-- evidence NAME.PART -->` and `<!-- end of evidence -->`.

A table stands on lines of its own, with its source below; a figure stands within a sentence. README's tables are
`summary.table`, of several results, and `summary.rivals`.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

from benchmarks.evidence import kept, summary
from benchmarks.evidence.kept import REPOSITORY, EvidenceError
from benchmarks.evidence.model import Figure
from benchmarks.evidence.registry import benchmarks
from benchmarks.rivals import page as rivals

_MARKED = re.compile(r"(<!-- evidence ([\w-]+)\.(\S+) -->)(.*?)(<!-- end of evidence -->)", re.DOTALL)
_read = cache(kept.read)


def pages() -> list[Path]:
    """Return the pages whose figures come from results."""
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs" / "evidence").glob("*.md"))]


def filled(text: str) -> str:
    """Return a page's text with its tables and figures made anew; raises EvidenceError for an unknown one."""
    return _MARKED.sub(lambda mark: f"{mark[1]}{_made(mark[2], mark[3])}{mark[5]}", text)


def without_figures(text: str) -> str:
    """Return a page's text without what results make."""
    return _MARKED.sub("", text)


def _made(name: str, part: str) -> str:
    if (name, part) == ("summary", "table"):
        return f"\n{summary.table(_figure, lambda one: shlex.join(['python', '-m', *benchmarks()[one].words]))}\n"
    if (name, part) == ("summary", "rivals"):
        return f"\n{rivals.short_table(_read('rivals').result)}\n"
    if (benchmark := benchmarks().get(name)) is None:
        raise EvidenceError(f"no result is called {name}: there are {', '.join(benchmarks())}")
    one = _read(name)
    if (table := benchmark.tables.get(part)) is not None:
        return f"\n{table(one.result)}\n\n{one.source}\n"
    figures = benchmark.figures(one.result)
    if part not in figures:
        raise EvidenceError(f"{name} has no {part}: there are {', '.join([*benchmark.tables, *figures])}")
    return figures[part].text


def _figure(name: str) -> Figure | None:
    """Return the figure BENCHMARK.PART; None where no result that is kept has it."""
    of, _, part = name.partition(".")
    return benchmarks()[of].figures(_read(of).result).get(part) if of in kept.names() else None
