"""Log lines about earmarks: nodes kept for jobs, for how long, and why none are kept for others."""

from __future__ import annotations

import logging
from collections.abc import Collection

from bftd.core.model.domain import Earmark, PoolView
from bftd.pool.earmarks import EarmarkMemory
from slurm_plugin.nodeset import fold

log = logging.getLogger("bftd")

_ENDS = {
    "started": "it has started",
    "gone": "it is gone",
    "no longer fits": "it no longer fits",
    "backed off": "it has not started, and is backed off",
}


class EarmarkLog:
    """A log of earmarks as they come and go, and, once each, of what keeps them from being made."""

    def __init__(self) -> None:
        self._earmarks: Collection[str] = ()
        self._faults: set[tuple[str, str, int]] = set()
        self._cut_told = False
        self._wary = False

    def tell(self, memory: EarmarkMemory, view: PoolView) -> None:
        """Log the news in one view of the pool; `memory` is what its earmarks were made from."""
        for over in view.earmarks_over:
            kept_s = view.time_s - over.earmark.since_s
            log.info("the earmark of job %s ends after %.1f s: %s", over.earmark.job, kept_s, _ENDS[over.end])
        for earmark in view.made(self._earmarks):
            log.info(
                "nodes are earmarked for job %s: %s; %s",
                earmark.job,
                fold(earmark.nodes),
                _leaving(earmark, view.time_s),
            )
        self._earmarks = view.earmarks.keys()
        if memory.cut and not self._cut_told:
            log.info("what waits is not all looked at for earmarks: %s", memory.cut)
            self._cut_told = True
        if bool(view.wary) != self._wary:
            self._wary = not self._wary
            log.warning("%s", view.wary) if view.wary else log.info("nodes are earmarked for all who wait again")
        if memory.fault is not None:
            self._tell_fault(memory.fault)

    def _tell_fault(self, fault: Exception) -> None:
        last = fault.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = ("", 0) if last is None else (last.tb_frame.f_code.co_filename, last.tb_lineno)
        known = (type(fault).__name__, *where)
        if known in self._faults:
            return
        self._faults.add(known)
        log.error(
            "no nodes could be earmarked for waiting jobs: this is a fault of bftd, please report it; the rest goes on",
            exc_info=fault,
        )


def _leaving(earmark: Earmark, now_s: float) -> str:
    """Say which pilots leave, and when."""
    if not earmark.leaving:
        return "no pilot is there"
    within = "" if earmark.due_s is None else f" within {earmark.due_s - now_s:.0f} s"
    return f"pilots leave {fold(earmark.leaving)}{within}"
