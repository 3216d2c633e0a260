"""The trainer as its back-end sees it: finds the cause of a failure and acts on it, for the node or the trainer."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Sequence

from bftd.protocol.reports import CrashReport
from elastic.backends import KINDS
from elastic.base.errors import EXIT_LINK_LOST, EXIT_USAGE
from elastic.base.timing import ARGUMENTS_S, FAULT_SHOWN_S, PAUSE_MOST_S, PAUSE_S, REGROUPED_S, SAVE_REQUEST_S, SILENT_S
from elastic.driver.context import TrainerContext
from elastic.driver.failures.blame import Blame, Verdict
from elastic.driver.failures.departed import Departures
from elastic.driver.failures.error_text import LastWords
from elastic.driver.pilots.launcher import Pilot
from elastic.driver.progress.regex import BACK, TOO_LONG, UNMATCHED, Printed
from elastic.driver.progress.uninstrumented import NOT_LOADED, SILENT, UNSAVED, Silence
from elastic.link.peer import Peer
from elastic.link.wire import Message


class FailurePolicy:
    """The services of the trainer to its back-end; see elastic.backends.base.TrainerServices."""

    def __init__(self, run: TrainerContext, pilots: Callable[[], Sequence[Pilot]]) -> None:
        """`pilots` returns the current ones."""
        self.settings = run.settings
        self._run = run
        self._pilots = pilots
        self._blame = Blame()
        self._words = LastWords()
        self._silence = Silence()
        self._printed = Printed(run.settings.spec.progress)
        self._departures = Departures()
        self._at_fault: set[str] = set()
        self._ends: list[tuple[Pilot, int, str]] = []
        self._asked = False
        self._reports_steps = False
        self._warned: set[str] = set()
        self._began_s: dict[str, float] = {}
        self._first: tuple[object, int, int] | None = None
        """The first worker of a generation that ended a step: generation, rank and step."""

    def log(self, text: str) -> None:
        """See TrainerServices."""
        self._run.log(text)

    def wake(self) -> None:
        """See TrainerServices."""
        self._run.wake()

    async def save_checkpoint(self, workers: Sequence[Peer], *, graceful: bool) -> None:
        """See TrainerServices, and CheckpointSaver.save."""
        self._report_printed(self._printed.take_unreported())
        times = self._run.progress.resize_times
        times.asked(time.monotonic(), graceful=graceful)
        # A script that reports no steps comes to no step boundary: waiting for one would be no use.
        boundary, asked = graceful and not self._silent, False
        if boundary and KINDS[self.settings.backend].saves_together:
            # Unless all accept a step no worker is stopped at one: others would wait for it in the script's own save.
            boundary = asked = await self._run.save_requests.make(workers, pause=True, limit_s=SAVE_REQUEST_S)
        pause_s = min(PAUSE_S + 2 * self._run.progress.step_s, PAUSE_MOST_S)
        await self._run.saver.save(workers, graceful=boundary, asked=asked, pause_s=pause_s)
        times.stored(time.monotonic())
        if self._silence.ended(time.monotonic()):
            self._warn_if_silent()
            if graceful and self._reports_steps and not self._has_saved:
                self._warn(UNSAVED)

    def finish(self, exit_code: int, reason: str) -> None:
        """See TrainerServices."""
        if exit_code == 0:
            self._report_printed(self._printed.take_unreported())  # the last lines count, too
        self._run.finish(exit_code, reason)

    # -- messages of nodes and workers ---

    def ready(self) -> None:
        """Notes that a node is ready for workers."""
        self._blame.ready()
        present = {pilot.lease for pilot in self._pilots()}
        self._words.forget(present)
        self._departures.forget(present)
        self._at_fault &= present
        self._began_s = {lease: at_s for lease, at_s in self._began_s.items() if lease in present}

    def formed(self, leases: Collection[str]) -> None:
        """See TrainerServices."""
        self._departures.formed(leases)

    def started(self, leases: Collection[str]) -> None:
        """See TrainerServices."""
        self._look_who_is_here()
        for lease in leases:
            self._departures.joined(lease)

    def began(self, pilot: Pilot) -> None:
        """Notes that a worker begins on this pilot."""
        self._look_who_is_here()
        self._run.progress.resize_times.began(time.monotonic())
        self._departures.began(pilot.lease)
        self._blame.began(pilot.node)
        self._began_s[pilot.lease] = time.monotonic()
        self._words.began(pilot.lease)
        self._report_printed(self._printed.take_unreported())
        first = self._silence.began(pilot.lease, time.monotonic())
        self._printed.began(joined=not first)
        if first:
            loop = asyncio.get_running_loop()
            loop.call_later(REGROUPED_S, self._report_resize)
            loop.call_later(SILENT_S, self._warn_if_silent)

    def printed(self, pilot: Pilot, line: str) -> bool:
        """Takes a line of the node's output; returns whether it is the first of its group that reports a step."""
        self._words.printed(pilot.lease, line)
        # The last lines of a stopped worker may come after the first worker of the next group.
        if self._reports_steps or not self._printed.reads or self._silence.outlived(pilot.lease):
            return False
        message = self._printed.read(pilot.lease, line, time.time(), self._group)
        if self._printed.gave_up:
            self._run.note(TOO_LONG)
        return self._report_printed(message)

    def _report_printed(self, message: Message | None) -> bool:
        if message is None or self._reports_steps:
            return False
        progress, step = self._run.progress, int(message["step"])
        progress.printed = True
        if message["first"] and 0 < step < progress.live_step and step <= self._printed.began_at:
            self._warn(BACK.format(step=step, reached=progress.live_step))
        for report in progress.report(message, time.monotonic()):
            self._run.report(report)
        return bool(message["first"])

    def _group(self) -> tuple[int, int]:
        """Returns the number of nodes with workers, and the number of workers."""
        sizes = [len(pilot.workers) for pilot in self._pilots() if pilot.workers]
        return len(sizes), sum(sizes)

    def script_failed(self, pilot: Pilot, text: str) -> None:
        """Takes the error that a worker's script fails with; the worker's end is reported by its node."""
        self._words.take_error(pilot.lease, text)

    def stepped(self, pilot: Pilot, message: Message) -> None:
        """Takes a worker's report of a step; the checkpoint saved by then is in the trainer's progress."""
        now_s, members = time.monotonic(), self._members()
        if message["first"]:
            self._compare(message)
        self._reports_steps, self._run.progress.printed = True, False
        # Horovod's workers outlive a change of nodes. A group with a worker that has since gone was formed before that.
        if message["first"] and 0 < int(message.get("nodes", 0)) <= len(members):
            self._look_who_is_here()
            self._departures.joined(pilot.lease)
        self._blame.stepped(pilot.node, int(message["step"]), now_s, members)
        self._blame.saved(self._run.progress.step, now_s)

    def _compare(self, message: Message) -> None:
        """Ends the trainer if the ranks of a group do not begin at the same step: each would have data of its own."""
        generation, rank, step = message.get("generation"), int(message["rank"]), int(message["step"])
        if generation is None:  # a Horovod group, whose workers give each other the state
            return
        if self._first is None or self._first[0] != generation:
            self._first = (generation, rank, step)
        _, other, at = self._first
        if step != at:
            (rank, begun), (other, at) = sorted([(rank, step - 1), (other, at - 1)])
            self.finish(
                1,
                f"rank {rank} began at step {begun} and rank {other} at step {at}: call elastic.load, and then "
                "elastic.step once a step, on every rank",
            )
        elif rank == 0 and not self._asked and 0 < step <= self._run.saved_step:
            self._warn(NOT_LOADED)

    # -- failures ---

    def broke(self, step: int, at_s: float) -> None:
        """Notes how far training had come, for the cost of the crash."""
        self._run.progress.broke(step, at_s)

    def crashed(self, pilot: Pilot, rc: int, early: str = "") -> None:
        """See TrainerServices."""
        if not self._ends:
            asyncio.get_running_loop().call_soon(self._look_at_ends)
        self._ends.append((pilot, rc, early))

    def _look_at_ends(self) -> None:
        """Handles the ends that were reported together, in the order in which they happened, after the back-end.

        A worker reports its error before it ends, and its peers fail because of its end.
        """
        ends, self._ends = self._ends, []
        followed = False
        for pilot, rc, early in sorted(ends, key=lambda end: self._place(*end[:2])):
            self._look_who_is_here()
            if pilot.expiring:  # given back for the end before this one, or for its time limit
                continue
            error = self._words.error(pilot.lease)
            text = f"a worker on {pilot.node} ended with {code_text(rc)}{f': {error}' if error else ''}"
            if self._departures.excuse(pilot.lease):
                self._run.log(f"{text}; another node had left its group")
            elif self._lost_link(pilot, rc):
                self._failed(pilot, rc, f"a worker on {pilot.node} lost its link to the driver")
            elif early:
                self._ended_early(pilot, rc, text, early, counts=not followed)
                followed = True
            else:
                self._failed(pilot, rc, text)
            self._words.used(pilot.lease)

    def _ended_early(self, pilot: Pilot, rc: int, text: str, early: str, *, counts: bool) -> None:
        """Handles a worker that failed after one of its group had ended with 0.

        Only the first of several, the likeliest cause, `counts`. It may have its own error or exit code: an
        evaluation at the end is rank 0's alone.
        """
        group, _ = self._place(pilot, rc)
        own = group == 0 or (group == 1 and (rc != 1 or bool(self._words.error(pilot.lease))))
        text = f"{text}; {early} before"
        self._log_crash(pilot, rc, text) if own else self._run.log(text)
        verdict = self._blame.ended_early() if counts else None
        if verdict is None or verdict.whose != "the script's":
            return
        if own:
            self._end(pilot, rc, verdict)
        else:
            times = _times(verdict.count)
            self.finish(
                _exit_code(rc), f"{early} while others trained, {times}; all ranks have to end after the same step"
            )

    def _place(self, pilot: Pilot, rc: int) -> tuple[int, int]:
        """Returns the sort key of an end among those that were reported with it.

        A killed worker reports no error, so it may be what the others failed of. If a script takes its group down in
        `finally`, its peers report lost connections first, and NCCL aborts a process that has lost one.
        """
        lease = pilot.lease
        if rc < 0 and rc != -signal.SIGABRT:
            group = 0
        elif self._words.of_a_peer(lease):
            group = 3
        else:
            group = 2 if rc == -signal.SIGABRT and not self._words.error(lease) else 1
        return group, self._words.order(lease)

    def _lost_link(self, pilot: Pilot, rc: int) -> bool:
        """Whether a worker ended because it lost its driver; a script that exits with that code reports an error."""
        return rc == EXIT_LINK_LOST and not self._words.error(pilot.lease)

    def node_exited(self, pilot: Pilot, rc: int) -> bool:
        """Handles the end of a node process and all of its workers; returns whether to give the pilot back now."""
        text = f"the node process ended with {code_text(rc)}"
        pilot.reason = pilot.reason or f"{text} on {pilot.node}"
        if pilot.revoked or pilot.leaving or pilot.expiring or self._run.result.done():
            return True
        if pilot.state == "ready":
            self._failed(pilot, rc or 1, f"the node process on {pilot.node} ended with {code_text(rc)}")
            return True
        last = (self._words.of(pilot.lease) or ("nothing",))[-1].strip()
        self.cannot(pilot, f"{text} before it was ready; the last it said: {last}")
        return False

    def absent(self, pilot: Pilot, text: str) -> None:
        """See TrainerServices."""
        self._log_crash(pilot, None, text)
        verdict = self._blame.absent(pilot.node, time.monotonic())
        pilot.reason = text
        self._expire(pilot)
        if verdict.whose == "the script's":
            self.finish(1, f"{text}; training failed {_times(verdict.count)} {self._since()}")

    def cannot(self, pilot: Pilot, text: str, *, sure: bool = False) -> None:
        """Gives back a node that cannot start workers; ends the trainer if all nodes say so, or would (`sure`)."""
        if pilot.lease in self._at_fault or self._run.result.done():
            return
        if pilot.revoked or pilot.leaving or pilot.over.is_set():
            return  # Slurm's notice, or bftd, also stops the fetching of an image: that says nothing about the image
        self._at_fault.add(pilot.lease)
        ready = sum(other.wanted for other in self._pilots())
        # The image may be out of reach for this node alone: if others are starting too, or training has run in it
        # before, they will show it.
        others = any(other.warming and other.lease not in self._at_fault for other in self._pilots())
        sure = sure and not others and self._run.saved_step < 0
        verdict = self._blame.cannot(pilot.node, text, ready, sure=sure)
        if verdict.whose == "the script's":
            self._run.report(CrashReport(time.time(), pilot.node, 1, text))
            self.finish(1, text)
            return
        self._run.log(f"{pilot.node} cannot train, it is given back: {text}")
        pilot.reason = text
        asyncio.get_running_loop().call_later(FAULT_SHOWN_S, self._give_up, pilot, text)

    def is_at_fault(self, pilot: Pilot) -> bool:
        """Whether this pilot's node was reported as unable to train."""
        return pilot.lease in self._at_fault

    def _give_up(self, pilot: Pilot, text: str) -> None:
        self._run.report(CrashReport(time.time(), pilot.node, 1, text))
        self._expire(pilot)

    def workers_failed(self, reason: str) -> None:
        """See TrainerServices."""
        self._run.log(reason)
        verdict = self._blame.workers_failed(time.monotonic())
        if verdict.whose == "the script's":
            self.finish(1, f"{reason}, {_times(verdict.count)} {self._since()}")
        self._run.wake()

    def _failed(self, pilot: Pilot, rc: int, text: str) -> None:
        now_s = time.monotonic()
        self._blame.saved(self._run.progress.step, now_s)
        what = self._words.error(pilot.lease) or code_text(rc)
        reached, lost_link = self._run.progress.live_step, self._lost_link(pilot, rc)
        if rc == EXIT_USAGE and not self._words.error(pilot.lease) and self._is_before_first_step(pilot, now_s):
            self._log_crash(pilot, rc, text)
            self._run.last_words = (pilot.node, self._words.of(pilot.lease))
            self.finish(rc, f"the script ended with {code_text(rc)} before its first step: it refuses its arguments")
            return
        verdict = self._blame.failed(pilot.node, what, lost_link, reached, now_s, self._members(pilot))
        if verdict.consequence:
            self._run.log(text)
            return
        if lost_link and verdict.whose == "nobody's":
            self._run.log(f"{text}; it is started again")  # a busy driver is no fault of the node
            return
        self._log_crash(pilot, rc, text)
        if verdict.whose == "the script's":
            self._end(pilot, rc, verdict)
        elif verdict.whose == "the node's":
            self._give_back(
                pilot, f"workers on {pilot.node} failed {_times(verdict.count)}, those of other nodes did not"
            )

    def _is_before_first_step(self, pilot: Pilot, now_s: float) -> bool:
        """Whether the trainer has no step yet; a script that reports none may have trained if it ran for longer."""
        ran_s = now_s - self._began_s.get(pilot.lease, now_s)
        return not self._run.progress.live_step and self._run.saved_step < 0 and ran_s < ARGUMENTS_S

    def _end(self, pilot: Pilot, rc: int, verdict: Verdict) -> None:
        if self._run.result.done():
            return
        error = self._words.error(pilot.lease)
        what = "the workers' links to the driver were lost" if self._lost_link(pilot, rc) else "the script failed"
        last = f"the last time on {pilot.node} with {code_text(rc)}{f': {error}' if error else ''}"
        self._run.last_words = (pilot.node, self._words.of(pilot.lease))
        self.finish(_exit_code(rc), f"{what} {_times(verdict.count)} {self._since()}, {last}")

    def _log_crash(self, pilot: Pilot, rc: int | None, text: str) -> None:
        self._run.log(text)
        self._run.report(CrashReport(time.time(), pilot.node, rc, text))

    def _give_back(self, pilot: Pilot, reason: str) -> None:
        self._run.log(f"{reason}: the node is given back")
        pilot.reason = reason
        self._expire(pilot)

    def _expire(self, pilot: Pilot) -> None:
        pilot.expiring = True
        self._run.wake()

    def _look_who_is_here(self) -> None:
        self._departures.look({pilot.lease for pilot in self._pilots() if pilot.wanted})

    def _members(self, failing: Pilot | None = None) -> list[str]:
        return [pilot.node for pilot in self._pilots() if pilot.wanted or pilot is failing]

    def _since(self) -> str:
        step = self._run.progress.step
        return f"since step {step} was saved" if step else "and saved nothing"

    # -- a script that reports nothing ---

    def asked_for_checkpoint(self) -> None:
        """Notes that a worker asks for a checkpoint: its script knows bftd, though it may load data for long now."""
        self._asked = True

    @property
    def _has_saved(self) -> bool:
        return self._run.store.step >= 0 or (self._reports_steps and self._run.progress.step > 0)

    @property
    def _silent(self) -> bool:
        return not (self._has_saved or self._asked or self._reports_steps)

    def _warn_if_silent(self) -> None:
        if self._silent and not self._printed.matched:
            self._warn(UNMATCHED if self._printed.reads else SILENT)

    def _warn(self, text: str) -> None:
        """Reports a text once, in the output and in `bft explain`."""
        if text not in self._warned and not self._run.result.done():
            self._warned.add(text)
            self._run.note(text)

    def _report_resize(self) -> None:
        report = self._silence.resize(time.time())
        if report is None or not self._silent or self._printed.matched or self._run.result.done():
            return
        self._run.progress.resizes += 1
        spec = self.settings.spec
        if (spec.up_cost_s if report.kind == "up" else spec.down_cost_s) is None:  # the user's own number is better
            self._run.report(report)


def code_text(rc: int) -> str:
    """Describes in words how a process ended."""
    if rc >= 0:
        return f"exit code {rc}"
    try:
        return f"signal {signal.Signals(-rc).name}"
    except ValueError:
        return f"signal {-rc}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _exit_code(rc: int) -> int:
    """Converts a worker's end to the job's exit code: shells write signal N as 128 + N."""
    return 128 - rc if rc < 0 else (rc or 1)
