"""The progress bar of commands that take a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[float], None]]:
    """A bar on standard error where that is a terminal; what it yields is told which part is done, in 0..1.

    It is drawn when it is told and has no thread of its own: worker processes are forked while it is there.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(label, total=1.0)
        yield lambda part: bar.update(task, completed=part, refresh=True)
