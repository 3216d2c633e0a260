"""The controller's load from `sdiag`: the length and depth of its scheduling cycles, and the rate of requests.

Sections are found by their headings and figures by their names, so figures that a release adds or omits do not affect
the others. A figure that is not shown is None: nothing is concluded from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_FIGURE = re.compile(r"\s*([^:]+?)\s*:\s*(\d{1,18})\s*$")
_TIME = re.compile(r"^(sdiag output at|Data since)\s.*\((\d{1,18})\)\s*$", re.MULTILINE)
_RPC = re.compile(
    r"^\s+(?:REQUEST|MESSAGE|RESPONSE|ACCOUNTING|SRUN)_\w*\s*\(\s*\d+\)\s+count:(\d{1,18})\b", re.MULTILINE
)
_BEGUN = re.compile(r"^\s+Last cycle when:.*\((\d{1,18})\)\s*$", re.MULTILINE)
_WORKS = re.compile(r"^Backfilling stats .*in the middle of", re.MULTILINE)
_MAIN, _BACKFILL, _EXIT = "Main schedule statistics", "Backfilling stats", "Backfill exit"


@dataclass(frozen=True, slots=True)
class Load:
    """The controller's load since its counters were last reset; a field is None if sdiag does not show it.

    Cycles are those of the backfill scheduler, without the time that it slept in between with its locks released. The
    last one began at `cycle_begun_s` and has looked at `last_depth` jobs so far; while it `works`, `last_cycle_s` is
    still that of the one before. The controller's clock was at `shown_s`, in whole seconds. `main_max_s` is the longest
    cycle of the main scheduler. `timeouts` are backfill cycles that bf_max_time ended, which releases after 22.05
    count. `threads` are the requests that the controller was serving at that moment.
    """

    cycles: int | None = None
    last_cycle_s: float | None = None
    mean_cycle_s: float | None = None
    max_cycle_s: float | None = None
    mean_depth: int | None = None
    queue_length: int | None = None
    timeouts: int | None = None
    main_max_s: float | None = None
    threads: int | None = None
    rpcs_per_s: float | None = None
    cycle_begun_s: float | None = None
    last_depth: int | None = None
    works: bool = False
    shown_s: float | None = None


def parse(text: str) -> Load | None:
    """Read sdiag's output; None for any other text."""
    main, backfill = _section(text, _MAIN), _section(text, _BACKFILL)
    if "sdiag output" not in text or not (main or backfill):
        return None
    return Load(
        cycles=backfill.get("Total cycles"),
        last_cycle_s=_seconds(backfill.get("Last cycle")),
        mean_cycle_s=_seconds(backfill.get("Mean cycle")),
        max_cycle_s=_seconds(backfill.get("Max cycle")),
        mean_depth=backfill.get("Depth Mean"),
        queue_length=backfill.get("Last queue length"),
        timeouts=_section(text, _EXIT).get("Timeout (bf_max_time)"),
        main_max_s=_seconds(main.get("Max cycle")),
        threads=_figures(text.partition(_MAIN)[0]).get("Server thread count"),
        cycle_begun_s=_begun_s(text),
        last_depth=backfill.get("Last depth cycle"),
        works=_WORKS.search(text) is not None,
        shown_s=_shown_s(text),
        rpcs_per_s=_rpcs_per_s(text),
    )


def _section(text: str, heading: str) -> Mapping[str, int]:
    """Return the figures below a heading, down to the next line that is not indented."""
    found = re.search(rf"^{re.escape(heading)}.*\n((?:[ \t]+\S.*\n?)*)", text, re.MULTILINE)
    return _figures(found[1]) if found else {}


def _figures(text: str) -> dict[str, int]:
    return {match[1]: int(match[2]) for line in text.splitlines() if (match := _FIGURE.match(line))}


def _begun_s(text: str) -> float | None:
    found = _BEGUN.search(text)
    return float(found[1]) if found else None


def _shown_s(text: str) -> float | None:
    return next((float(time_s) for name, time_s in _TIME.findall(text) if name == "sdiag output at"), None)


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


def _rpcs_per_s(text: str) -> float | None:
    times = {name: int(time_s) for name, time_s in _TIME.findall(text)}
    counts = [int(count) for count in _RPC.findall(text.partition("statistics by user")[0])]
    if len(times) < 2 or not counts or times["sdiag output at"] <= times["Data since"]:
        return None
    return sum(counts) / (times["sdiag output at"] - times["Data since"])
