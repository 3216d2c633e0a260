"""The progress bar of commands that take a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")

PRINTED_AFTER_S, PRINTED_EVERY_S = 2.0, 30.0
"""Seconds until the first and between further progress lines, if there is no terminal for a bar."""


class Report(Protocol):
    """A function that draws the bar: the part done, in 0..1, and a text if it is not the bar's label.

    While the part is 0, the bar moves to and fro.
    """

    def __call__(self, part: float, message: str = "", /) -> None: ...


@contextmanager
def progress_bar(label: str, *, lines: bool = False) -> Iterator[Report]:
    """Show a progress bar on standard error; yield the function that updates it (0..1).

    Without a terminal nothing is shown, or with `lines` a line after two seconds and every 30 seconds from then on.

    The bar is drawn only when it is updated and has no thread of its own, as worker processes are forked meanwhile.
    """
    if not sys.stderr.isatty():
        yield _lines(label) if lines else lambda _part, _message="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    share = TextColumn("{task.fields[share]:>4}")
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), share, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(label, total=None, share="")

        def report(part: float, message: str = "", /) -> None:
            total, share = (1.0, f"{part:.0%}") if part > 0 else (None, "")
            bar.update(task, completed=part, total=total, share=share, description=message or label, refresh=True)

        yield report


def meanwhile(label: str, work: Callable[[], T], *, lines: bool = True) -> T:
    """Return the result of work that does not say how far it is, and show meanwhile that it goes on."""
    from sizing.child.threads import side_by_side

    with progress_bar(label, lines=lines) as report:
        (result,) = side_by_side([work], lambda: report(0.0))
    return result


@contextmanager
def progress_bars() -> Iterator[Callable[[str, float], None]]:
    """Yield a function that shows work by its name: a bar, or lines, from its part 0 until its part 1."""
    with ExitStack() as stack:
        shown: dict[str, Report] = {}

        def progress(name: str, part: float) -> None:
            if part >= 1:
                stack.close()
                shown.clear()
                return
            if name not in shown:
                shown[name] = stack.enter_context(progress_bar(name, lines=True))
            shown[name](part)

        yield progress


def _lines(label: str) -> Report:
    began_s = time.monotonic()
    due_s = began_s + PRINTED_AFTER_S

    def report(part: float, message: str = "", /) -> None:
        nonlocal due_s
        if (now_s := time.monotonic()) >= due_s:
            due_s = now_s + PRINTED_EVERY_S
            so_far = f"{100 * part:.0f} %" if part > 0 else f"{now_s - began_s:.0f} s so far"
            print(f"bft: {message or label}: {so_far}", file=sys.stderr, flush=True)

    return report
