"""The result of a check, and its time limit: a program or file system that hangs is a result too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "failure", "unknown"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "failure", "unknown")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `text` says what was seen and, unless it is ok, what to do."""

    name: str
    level: Level
    text: str


def limited(name: str, work: Callable[[], Iterable[Check]], limit_s: float) -> list[Check]:
    """Return the checks that `work` yields within its time limit, and one more for what kept it from ending.

    An error of ours or of the system is a failure, with the error's own advice; any other is a fault of the check, and
    leaves unknown what it was to find. The thread of work that hangs ends with the process.
    """
    found: list[Check] = []

    def run() -> None:
        try:
            for check in work():
                found.append(check)  # one at a time: what hangs later keeps none of them from us
        except Exception as error:
            is_known = isinstance(error, OSError) or hasattr(error, "exit_code")
            text = str(error) if is_known else f"this check has a fault, report it: {type(error).__name__}: {error}"
            found.append(Check(name, "failure" if is_known else "unknown", text))

    thread = threading.Thread(target=run, name=f"doctor {name}", daemon=True)
    thread.start()
    thread.join(limit_s)
    checks = list(found)
    if thread.is_alive():
        text = f"no answer for {limit_s:g} s: what it asks hangs; `bft doctor` again shows whether it was busy"
        checks.append(Check(name, "failure", text))
    return checks
