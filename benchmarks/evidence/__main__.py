"""Run benchmarks again and compare them with the results that are kept, and write the pages that show these.

    python -m benchmarks.evidence [NAME...] [--minutes N] [--keep] [--pages]

Without names it runs those that together take at most `--minutes` on two idle cores, the shortest first, and prints
each figure that lies outside the interval stated for it: by chance, one of twenty does. `--keep` replaces the results,
`--pages` only writes the tables and figures of README.md and docs/evidence.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.evidence import kept, pages
from benchmarks.evidence.kept import EvidenceError
from benchmarks.evidence.model import Benchmark
from benchmarks.evidence.registry import benchmarks

MINUTES = 60.0


def chosen(names: Sequence[str], minutes: float) -> list[str]:
    """Return the names, or the shortest benchmarks with a result that is kept, which together take so many minutes."""
    if names:
        return list(names)
    found, left, there = [], minutes, kept.names()
    for name, benchmark in sorted(benchmarks().items(), key=lambda each: each[1].minutes):
        if name not in there:
            continue
        if benchmark.minutes > left:
            break
        left -= benchmark.minutes
        found.append(name)
    return found


def outside(benchmark: Benchmark, before: Any, now: Any) -> list[str]:
    """Return a line for each figure of `now` outside the interval that `before` states."""
    figures = benchmark.figures(now)
    return [
        f"{name}: {figures[name].text if name in figures else 'none'}, kept: {old.text}"
        for name, old in benchmark.figures(before).items()
        if old.interval is not None
        and not (name in figures and old.interval[0] <= figures[name].value <= old.interval[1])
    ]


def main() -> int:
    """Run, compare and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(benchmarks())} [the shortest]")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"all may take together [{MINUTES:.0f}]")
    parser.add_argument("--keep", action="store_true", help="replace the results that are kept")
    parser.add_argument("--pages", action="store_true", help="run nothing, and write the pages")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in benchmarks()]:
        parser.error(f"no benchmark is called {unknown[0]}: there are {', '.join(benchmarks())}")
    failed = 0
    for name in [] if options.pages else chosen(options.names, options.minutes):
        try:
            _again(name, options.keep)
        except EvidenceError as error:
            failed += 1
            print(f"{name}: {error}")
    if options.pages or options.keep:
        for path in pages.pages():
            try:
                path.write_text(pages.filled(path.read_text(encoding="utf-8")), encoding="utf-8")
            except EvidenceError as error:
                failed += 1
                print(f"{path}: {error}")
    return 1 if failed else 0


def _again(name: str, keep: bool) -> None:
    benchmark = benchmarks()[name]
    now = kept.run(benchmark.words)
    if keep:
        kept.write(name, now)
        print(f"{name}: kept")
        return
    lines = outside(benchmark, kept.read(name).result, now.result)
    stated = sum(one.interval is not None for one in benchmark.figures(now.result).values())
    print(f"{name}: {stated - len(lines)} of {stated} figures lie in their intervals")
    for line in lines:
        print(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
