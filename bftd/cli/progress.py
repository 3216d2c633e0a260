"""The progress bar of commands that take a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Tell(Protocol):
    """Draws a bar: which part is done, in 0..1, and what is being done where that is not the bar's label."""

    def __call__(self, part: float, said: str = "", /) -> None: ...


@contextmanager
def progress_bar(label: str) -> Iterator[Tell]:
    """A bar on standard error where that is a terminal; what it yields is told which part is done, in 0..1.

    It is drawn when it is told and has no thread of its own: worker processes are forked while it is there.
    """
    if not sys.stderr.isatty():
        yield lambda _part, _said="": None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(label, total=1.0)
        yield lambda part, said="": bar.update(task, completed=part, description=said or label, refresh=True)
