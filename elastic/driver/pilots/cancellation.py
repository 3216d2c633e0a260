"""Orders that end allocations, each repeated until Slurm accepts it: a job that nobody ends holds a node for hours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from slurm_plugin.errors import SlurmError
from slurm_plugin.submission.submission import Leftover

_AT_ONCE = 4
"""Commands that end jobs at the same time, in threads of their own: placements wait for Slurm, these must not."""

_TOGETHER = 100
"""The most jobs of one order: jobs to end while others are being ended wait for each other, which costs Slurm less."""

_AGAIN_S = 1.0
_LONGEST_S = 30.0
"""The longest pause between two tries; it doubles from one to the next."""

_SETTLED_S = 60.0
"""A controller that did not answer may carry a request out this much later: the last look for leftovers is then."""

_CLOSING_TRIES = 3
_CLOSING_S = 10.0
"""At its end the driver asks Slurm this often, within this time; its own job is being ended meanwhile."""


Clear = Callable[[Leftover], None]


class Slurm(Protocol):
    """The Slurm client that ends jobs; every call blocks, and raises SlurmError if Slurm has not accepted it."""

    def cancel(self, job_ids: list[str], signal: str | None = None) -> None:
        """Ends jobs, at once with the signal "KILL"; jobs that are over are no error."""


class Endings:
    """One driver's orders. A pilot may be over before Slurm accepts its order: the order is given all the same."""

    def __init__(self, slurm: Slurm, log: Callable[[str], None]) -> None:
        self._slurm = slurm
        self._log = log
        self._threads = ThreadPoolExecutor(_AT_ONCE, "bft-ending")
        self._empty: set[str] = set()
        self._running: dict[str, asyncio.Future[None]] = {}
        self._waiting: list[str] = []
        self._orders: set[asyncio.Task[None]] = set()
        self._taken: set[str] = set()
        self._failed: set[str] = set()
        self._forgotten: set[str] = set()
        self._again: asyncio.Task[None] | None = None
        self._clearing: dict[asyncio.Task[None], tuple[Leftover, Clear]] = {}
        self._away = False
        self._closed = False

    async def cancel(self, jobs: list[str]) -> None:
        """Ends allocations at once, each with one order, whoever gives it; returns when the first try is over."""
        loop = asyncio.get_running_loop()
        for job in jobs:
            if job not in self._running and job not in self._taken:
                self._running[job] = loop.create_future()
                self._waiting.append(job)
        loop.call_soon(self._give)
        if tries := {self._running[job] for job in jobs if job in self._running}:
            await asyncio.wait(tries)

    def empty(self, job: str) -> None:
        """Notes that no process is left in a job."""
        self._empty.add(job)

    def forget(self, job: str) -> None:
        """Forgets a job whose pilot is over; an order for it that Slurm has not accepted is still given."""
        self._empty.discard(job)
        self._taken.discard(job)
        if job in self._running or job in self._failed:
            self._forgotten.add(job)

    def clear(self, leftover: Leftover, clear: Clear) -> None:
        """Has `clear` remove what a refused request may have left behind, in the background."""
        task = asyncio.ensure_future(self._cleared(leftover, clear))
        self._clearing[task] = (leftover, clear)
        task.add_done_callback(lambda done: self._clearing.pop(done, None))

    async def close(self) -> None:
        """Tries a last few times to end the remaining jobs; logs in one line those that may still run then."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        left = list(self._clearing.values())
        for task in list(self._clearing):
            task.cancel()
        self._failed.update(leftover.job_id for leftover, _ in left if leftover.job_id is not None)
        unsure = [(leftover, clear) for leftover, clear in left if leftover.job_id is None]
        looks = [asyncio.ensure_future(self._in_thread(clear, leftover)) for leftover, clear in unsure]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._last_tries(looks), _CLOSING_S)
        if jobs := sorted(self._failed | set(self._running)):
            self._log(
                f"Slurm did not take the order to end {', '.join(jobs)}; if they still run: scancel {' '.join(jobs)}"
            )
        if nodes := sorted({leftover.request.node for leftover, _ in unsure}):
            self._log(f"Slurm never said what became of the pilots asked for on {', '.join(nodes)}; see squeue --me")
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _last_tries(self, looks: Sequence[asyncio.Future[None]]) -> None:
        for number in range(_CLOSING_TRIES):
            if number:
                await asyncio.sleep(_AGAIN_S)
            if tries := set(self._running.values()):
                await asyncio.wait(tries)
            if not self._failed:
                break
            await self.cancel(sorted(self._failed))
        await asyncio.gather(*looks, return_exceptions=True)

    # -- orders ---

    def _give(self) -> None:
        while self._waiting and len(self._orders) < _AT_ONCE:
            jobs, self._waiting = self._waiting[:_TOGETHER], self._waiting[_TOGETHER:]
            order = asyncio.ensure_future(self._order(jobs))
            self._orders.add(order)
            order.add_done_callback(partial(self._given, jobs))

    def _given(self, jobs: list[str], order: asyncio.Task[None]) -> None:
        self._orders.discard(order)
        for job in jobs:
            self._running.pop(job).set_result(None)
        if self._failed and not self._closed and (self._again is None or self._again.done()):
            self._again = asyncio.ensure_future(self._try_again())
        self._give()

    async def _order(self, jobs: list[str]) -> None:
        # Once srun has returned, no process is left to kill first: that would be two more commands a pilot, just when
        # Slurm is busy with the job that the node was taken for.
        empty = [job for job in jobs if job in self._empty]
        self._empty.difference_update(empty)
        for ids, signal in (([job for job in jobs if job not in empty], "KILL"), (empty, None)):
            if ids:
                await self._try(ids, signal)

    async def _try(self, ids: list[str], signal: str | None) -> None:
        try:
            await self._in_thread(self._slurm.cancel, ids, signal)
        except (SlurmError, RuntimeError) as error:  # RuntimeError if the host can start no more threads
            if not self._away:
                self._log(f"{error}; the order to end {len(ids)} pilots is given again until Slurm takes it")
            self._away = True
            self._failed.update(ids)
            return
        self._away = False
        self._failed.difference_update(ids)
        self._taken.update(job for job in ids if job not in self._forgotten)
        self._forgotten.difference_update(ids)

    async def _try_again(self) -> None:
        pause_s = _AGAIN_S
        while self._failed:
            await asyncio.sleep(pause_s)
            await self.cancel(sorted(self._failed))
            pause_s = min(2 * pause_s, _LONGEST_S)

    # -- leftovers of refused requests ---

    async def _cleared(self, leftover: Leftover, clear: Clear) -> None:
        """Clears until Slurm says that nothing is left, and again when a late request must have been carried out."""
        loop = asyncio.get_running_loop()
        settled_s = loop.time() + (_SETTLED_S if leftover.job_id is None else 0.0)
        pause_s = _AGAIN_S
        while True:
            begun_s = loop.time()
            try:
                await self._in_thread(clear, leftover)
            except (SlurmError, RuntimeError):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_S)
                continue
            if begun_s >= settled_s:
                return
            await asyncio.sleep(settled_s - begun_s)

    async def _in_thread(self, call: Callable[..., None], *arguments: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
