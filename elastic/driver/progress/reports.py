"""Progress from the workers' reports: steps that never go back, throughput at a constant size, the cost of a resize.

Pure: messages in, reports for the daemon out. Times are the workers' own and come with the messages.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from bftd.protocol.bounds import NODES_MOST, NUMBER_MOST, SAMPLES_MOST, WHOLE_MOST
from bftd.protocol.fields import Fields
from bftd.protocol.reports import ProgressReport, Report, ResizeKind, ResizeReport
from elastic.driver.progress.resize_times import ResizeTimes
from elastic.link.wire import Message

_SETTLE_S = 1.0
"""The first second after a resize is not steady: it is left out of the throughput."""

_WINDOW_S = 30.0
"""The throughput is the average over at most this time, so that it follows a trainer whose steps change."""

_SET_S = 60.0
"""Clocks of nodes differ by less; one that goes back further, or this far ahead of the time passed, was set."""


@dataclass
class TrainerProgress:
    """One trainer's progress; `nodes` is the number of nodes behind the present world of `size` workers."""

    workers_per_node: int = 1
    """The workers on each node, if a worker does not report the number of nodes."""

    printed: bool = False
    """Whether the steps are read from the script's output: the step it resumes at is known only once it prints it."""

    nodes: int = 0
    step: int = 0
    samples: int = 0
    live_step: int = 0
    loss: float | None = None
    first_loss: float | None = None
    size: int = 0
    samples_per_s: float = 0.0
    steps_lost: int = 0
    losses: int = 0
    """The number of times that steps were lost."""

    steps_per_s: float = 0.0
    total_steps: int | None = None
    kept_step: int = -1
    """The step of the newest checkpoint, -1 for none."""

    resizes: int = 0
    suspends: int = 0
    groups: int = 0
    """The number of groups of workers that have reached their first step."""

    step_s: float = 0.0
    resize_times: ResizeTimes = field(default_factory=ResizeTimes)
    _window: tuple[float, int, int] | None = None
    _last_step_s: float = 0.0
    _reported: tuple[int, float] = (0, 0.0)
    _told_step: int = 0
    _heard_s: float | None = None
    _broken: bool = field(default=False)
    _suspended: bool = field(default=False)
    _final: tuple[int, int] = (0, 0)
    """The step and samples at which rank 0 of the present group ended with 0."""

    _formed: tuple[bool, float, int] = (False, 0.0, 0)
    """For the present group: whether it is the first since a start, its stall in seconds, and the steps lost for it."""

    def broke(self, step: int, at_s: float) -> None:
        """Notes a worker's unplanned end at `step` (-1: unknown): the next resize is a crash's, with its loss."""
        self._broken = True
        self.saw(step, at_s)

    def saw(self, step: int, at_s: float) -> None:
        """Notes a step that some worker reached, if it can be, for the loss and the stall of the next resize."""
        if step > WHOLE_MOST or not 0 <= at_s <= NUMBER_MOST:
            return
        self.live_step = max(self.live_step, step)
        self._last_step_s = max(self._last_step_s, at_s)

    def suspended(self, step: int) -> None:
        """Notes that all workers are stopped; the trainer goes on from `step`."""
        self.suspends += 1
        self._suspended = True
        self.samples_per_s = self.steps_per_s = 0.0
        self._lose(self.live_step - max(step, 0))
        self.live_step = max(step, 0)

    def report(self, message: Message, heard_s: float | None = None) -> list[Report]:
        """Takes a worker's `step` message; returns the reports for the daemon, of a resize and of the progress.

        `heard_s` is its time of arrival on a monotonic clock: it shows when the workers' clock was set.
        Raises Malformed, with nothing noted, for a message that no worker sends.
        """
        reports: list[Report] = []
        told = Fields(message, "step")
        step, rank, at_s, lost = (
            told.whole("step"),
            told.whole("rank"),
            told.number("at_s"),
            told.whole("steps_lost", 0),
        )
        size, nodes = told.whole("size"), told.whole("nodes", 0, maximum=NODES_MOST)
        saved_step, previous_s, first = told.whole("saved_step"), told.number("previous_s", 0.0), bool(message["first"])
        total, _, _ = told.raw("total_steps"), told.nested("costs"), told.measure("loss")
        # the script itself counts its samples, and may be wrong
        samples, saved_samples = (max(0, min(SAMPLES_MOST, int(message[key]))) for key in ("samples", "saved_samples"))
        was_set = self._follow_clock(at_s, heard_s)
        if first and rank == 0:
            previous_s = max(0.0 if was_set else previous_s, self._last_step_s)
            reports += self._first_of_group(previous_s, message, (step, size, nodes), at_s, lost)
        if rank != 0:
            return reports
        self._time_steps(step, at_s, first)
        self.saw(step, at_s)
        self._measure(samples, step, at_s)
        if total is not None:
            self.total_steps = total if isinstance(total, int) and 0 < total <= WHOLE_MOST else None
        if message.get("loss") is not None:
            self.loss = float(message["loss"])
            self.first_loss = self.loss if self.first_loss is None else self.first_loss
        if message.get("final"):
            self._final = step, samples
        self.saved(saved_step, saved_samples)
        reports.append(self.present(at_s))
        self._told_step = self.step
        return reports

    def saved(self, step: int, samples: int) -> None:
        """Notes that a checkpoint arrived in the driver: its progress can no longer be lost."""
        self.step, self.samples = max(self.step, step), max(self.samples, samples)

    def completed(self) -> None:
        """Notes that training is complete: the steps of its last group count, saved or not."""
        self.saved(*self._final)

    def went_back(self, step: int, samples: int) -> None:
        """Notes that the newest checkpoint is unusable and an older one kept; the loss counts once training resumes."""
        self.step, self.samples = min(self.step, step), min(self.samples, samples)

    def present(self, at_s: float) -> ProgressReport:
        """Returns the present progress."""
        return ProgressReport(
            at_s=at_s,
            step=self.step,
            samples=self.samples,
            samples_per_s=self.samples_per_s,
            nodes=self.nodes,
            world_size=self.size,
            loss=self.loss,
            steps_lost=self.steps_lost,
            window_s=max(0.0, at_s - self._window[0]) if self._window else 0.0,
            save_s=self.resize_times.save_s,
            state_bytes=self.resize_times.state_bytes,
            total_steps=self.total_steps,
            steps_per_s=self.steps_per_s,
            live_step=self.live_step,
        )

    def untold(self, at_s: float) -> list[Report]:
        """Returns the progress, without a speed, if a checkpoint has arrived since it was last told."""
        if self.step <= self._told_step:
            return []
        return [replace(self.present(at_s), nodes=0, samples_per_s=0.0, window_s=0.0, steps_per_s=0.0)]

    def _follow_clock(self, at_s: float, heard_s: float | None) -> bool:
        """Whether the workers' clock was set since the last message: measuring then starts again.

        Otherwise nothing would be measured until a clock that was set back has caught up, and an hour forwards would
        count as an hour's stall.
        """
        passed_s = heard_s - self._heard_s if heard_s is not None and self._heard_s is not None else None
        self._heard_s = heard_s
        went_s = at_s - self._last_step_s
        ahead = passed_s is not None and self._last_step_s > 0 and went_s > passed_s + _SET_S
        if not ahead and went_s >= -_SET_S:
            return False
        self._window, self._last_step_s = None, at_s - (passed_s or 0.0)
        self._reported = (self._reported[0], self._last_step_s)
        return True

    def _first_of_group(
        self, previous_s: float, message: Message, group: tuple[int, int, int], at_s: float, lost: int
    ) -> list[Report]:
        self.groups += 1
        self._final = 0, 0  # another worker of that group has failed, and its steps are trained again
        step, size, nodes = group
        before, self.size = self.nodes, size
        # Nodes may be unequal: the workers know how many there are.
        self.nodes = nodes or size // self.workers_per_node
        # The old size's throughput says nothing about the new one: the daemon learns the curve from it.
        self._window, self.samples_per_s, self.steps_per_s = None, 0.0, 0.0
        # Upstream's rollback (Horovod) or a restart from the last save (torchrun): steps that were done twice.
        lost = max(lost, self.live_step - step + 1 if self.live_step else 0)
        self._lose(lost)
        self.live_step = step
        started = previous_s == 0.0 or self._suspended
        self._suspended = False
        broken, self._broken = self._broken, False
        # The step itself would have taken its time without a resize too.
        stall_s = max(0.0, at_s - previous_s - self.step_s)
        if message.get("joined"):  # others of the group reached steps before: it formed then, not now
            began, stood_s, again = self._formed
            started, stall_s, lost = started or began, stall_s + stood_s, max(0, lost) + again
        self._formed = (started, stall_s, max(0, lost))
        parts = self.resize_times.parts(stall_s, message.get("costs") or {})
        if started:
            return []
        self.resizes += self.nodes != before
        if self.nodes == before and not broken:
            return []
        kind: ResizeKind = "crash" if broken else ("up" if self.nodes > before else "down")
        return [ResizeReport(at_s, before, self.nodes, kind, stall_s, max(0, lost), **asdict(parts))]

    def _time_steps(self, step: int, at_s: float, first: bool) -> None:
        before, before_s = self._reported
        self._reported = (step, at_s)
        if not first and step > before:
            self.step_s = (at_s - before_s) / (step - before)

    def _measure(self, samples: int, step: int, at_s: float) -> None:
        if self._window is None:
            self._window = (at_s + _SETTLE_S, -1, -1)
            return
        begin_s, begin_samples, begin_step = self._window
        if at_s < begin_s:
            return
        if begin_samples < 0:
            self._window = (at_s, samples, step)
            return
        if at_s - begin_s > 0 and samples > begin_samples:
            self.samples_per_s = min(NUMBER_MOST, (samples - begin_samples) / (at_s - begin_s))
            self.steps_per_s = max(0.0, min(NUMBER_MOST, (step - begin_step) / (at_s - begin_s)))
        if at_s - begin_s > _WINDOW_S:
            self._window = (at_s, samples, step)

    def _lose(self, steps: int) -> None:
        self.steps_lost += max(0, steps)
        self.losses += steps > 0
