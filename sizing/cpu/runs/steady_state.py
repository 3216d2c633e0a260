"""The observation of a command's run: whether enough was seen of it, and the resulting point."""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sizing.base.errors import SizingError, UsageError
from sizing.base.estimate import Estimate
from sizing.cpu.patterns import COUNT_MOST, Group, OutputLines, Pattern, suggested
from sizing.cpu.runs.affinity import Kind
from sizing.cpu.sensitivity.rates import Count, Seen, Steady, interval, steady

Unit = Literal["samples/s", "steps/s", "as printed"]
Phase = Literal["starting", "warming up", "measuring"]

_RECENT = 20  # lines in which a step is looked for
_APART_S = 0.01  # between entries of a series
_FEW = 5  # number of blocks from which a rate of slow steps counts as steady
_SHORT_S = 3.0  # training time from which the rate of a command that ended by itself counts
_SHORT_ENTRIES = 10
_SHORT_WARMUP = 0.3
_USE = ("read", "cpu_s", "busy_s")
_DISTURBED = 0.1  # share of its CPUs
_LOOKED_S = 0.3  # least time between looks: in less, a count of ticks of 10 ms says nothing
_IDLE = 0.03  # share of a CPU: less than any training needs to start its steps
_UNITS: Mapping[Group, Unit] = {"samples": "samples/s", "step": "steps/s", "rate": "as printed"}


class Unmeasured(SizingError):
    """A point has no throughput: the command died, ended too soon, or printed none; `output` is its output file.

    `timed_out` says whether it still ran when its time was over: with more time there might be a throughput.
    """

    def __init__(self, said: str, output: str = "", *, timed_out: bool = False) -> None:
        super().__init__(said)
        self.output, self.timed_out = output, timed_out


@dataclass(frozen=True, slots=True)
class ObservationLimits:
    """The time limits of a point's measurement.

    From the first sign of progress, `warmup_s` are left out; then the point is over after `least_steps` steps and
    `least_s` seconds, or after `enough_s` seconds with fewer steps. All of it, the start included, takes at most
    `timeout_s`. Raises UsageError for an invalid time.
    """

    timeout_s: float = 120.0
    warmup_s: float = 5.0
    least_steps: int = 50
    least_s: float = 5.0
    enough_s: float = 20.0

    def __post_init__(self) -> None:
        if not 1 <= self.timeout_s <= 86_400:
            raise UsageError(f"--timeout {self.timeout_s:g}: seconds, from 1 to 86400")

    @property
    def usual_s(self) -> float:
        """The time of a point without the command's start, if its steps are no slower than usual."""
        return min(self.warmup_s + self.least_s, self.timeout_s)


@dataclass(frozen=True, slots=True)
class PointProgress:
    """The progress of a point: seconds since its start, of at most `of_s`, steps and the rate so far (None: none).

    While no step is seen, `printed` is the last line of output, and `expression` what might find a step in such lines.
    """

    cpus: int
    phase: Phase
    elapsed_s: float
    of_s: float
    steps: int = 0
    rate: float | None = None
    printed: str = ""
    expression: str = ""


@dataclass(frozen=True, slots=True)
class PointResult:
    """The result of a command on `cpus` CPUs in total.

    `rate` is the median of `blocks`, rates of pieces of the steady time, with its 95 % interval. `process_bytes` is the
    most memory that the command's processes had together and that cannot be dropped (0: unknown), `read_bytes_s` the
    bytes they read per second, from memory or disk (0: unknown), `cpu_s` the CPU time used per second, `others` the
    share of its CPUs that other programs took meanwhile (0 if unknown).
    """

    cpus: int
    rate: Estimate
    unit: Unit
    blocks: tuple[float, ...]
    steps: int
    steady_s: float
    took_s: float
    start_s: float
    kind: Kind
    made_s: float
    process_bytes: int = 0
    read_bytes_s: float = 0.0
    cpu_s: float = 0.0
    others: float = 0.0
    notes: tuple[str, ...] = ()


Heard = Callable[[PointProgress], None]


class PointObserver:
    """The observer of a run from its start; times are seconds of one clock, but the progress API's of another."""

    def __init__(
        self,
        cpus: int,
        limits: ObservationLimits,
        pattern: Pattern | None,
        kind: Kind,
        command: Sequence[str],
        output: str,
    ) -> None:
        self._cpus, self._limits, self._pattern, self._kind = cpus, limits, pattern, kind
        self._on = "1 CPU" if cpus == 1 else f"{cpus} CPUs"
        self._name, self._output = " ".join(command)[:80], output
        self._began_s = time.monotonic()
        self._over_s = self._began_s
        self._first_s: float | None = None
        self._lines = OutputLines()
        self._recent: deque[str] = deque(maxlen=_RECENT)
        self._group: Group = "samples"
        self._count = Count()
        self._seen: list[Seen] = []
        self._steps: list[Seen] = []  # as the progress API counts them, besides samples
        self._used: list[dict[str, float]] = []
        self._measuring_s: float | None = None
        self._memory_bytes = 0
        self._had: dict[str, Any] = {}
        self._failed: dict[str, Any] | None = None
        self._steady: Steady | None = None
        self._notes: list[str] = []
        self._done = False

    # -- while it runs ---

    def take(self, printed: bytes, said: Sequence[Mapping[str, Any]], now_s: float) -> None:
        """Note the output and the guard's messages until now."""
        self._over_s = now_s
        for line in self._lines.feed(printed) if printed else ():
            self._recent.append(line)
            if self._pattern is not None and (found := self._pattern.search(line)) is not None:
                self._note(found[0], found[1], now_s)
        for each in said:
            op = each.get("op")
            if op == "step" and self._pattern is None:
                self._step(each, now_s)
            elif op == "used":
                self._memory_bytes = max(self._memory_bytes, int(each["memory"]))
                self._used.append({"seen_s": now_s} | {key: float(each.get(key, 0.0)) for key in (*_USE, "at_s")})
            elif op == "began":
                self._had = dict(each)
                if self._kind == "cgroup" and not each.get("cgroup"):
                    self._notes.append("no cpuset could be made: it was confined by its CPU affinity alone")
                if self._kind == "srun" and each.get("narrowed"):
                    self._notes.append("Slurm left the step more CPUs (TaskPlugin): its CPU affinity was narrowed")
            elif op in ("ended", "short", "unstartable"):
                self._memory_bytes = max(self._memory_bytes, int(each.get("memory", 0)))
                self._failed = dict(each)

    def enough(self, now_s: float) -> bool:
        """Whether the run may end: enough was seen, or its time is over."""
        self._done = self._is_enough(now_s)
        return self._done

    def _is_enough(self, now_s: float) -> bool:
        if now_s - self._began_s >= self._limits.timeout_s or (self._pattern is not None and self._pattern.said):
            return True
        if self._first_s is None or now_s - self._first_s < self._limits.warmup_s:
            return False
        self._measuring_s = self._measuring_s or now_s
        found = self._steady = self._found(self._limits.warmup_s)
        if found is None:
            return False
        if self._counted(found) >= self._limits.least_steps and found.seconds >= self._limits.least_s:
            return True
        return len(found.blocks) >= _FEW and found.seconds >= self._limits.enough_s

    def progress(self, now_s: float) -> PointProgress:
        """Return the progress of the run."""
        phase: Phase = "starting"
        if self._first_s is not None:
            phase = "warming up" if self._measuring_s is None else "measuring"
        rate = interval(self._steady.blocks)[0] if self._steady is not None else None
        at = PointProgress(self._cpus, phase, now_s - self._began_s, self._limits.timeout_s, len(self._seen), rate)
        if self._seen or not self._lines.last:
            return at
        return replace(at, printed=self._lines.last, expression=suggested(self._recent))

    # -- when it is over ---

    def result(self, words: Sequence[str], left: int) -> PointResult:
        """Return the point; raise Unmeasured, with advice, if there is none."""
        self._lines.end()
        self._refuse(words)
        found = self._found(self._limits.warmup_s)
        ended = self._failed is not None and self._failed.get("code") is not None
        if found is None or len(found.blocks) < 2:
            found = self._short() or found
        if found is None:
            raise Unmeasured(self._too_little(ended=ended), self._output, timed_out=not ended)
        value, low, high = interval(found.blocks)
        if not value > 0:
            raise Unmeasured(f"{self._name} made no progress on {self._on}: {self._see()}", self._output)
        if self._counted(found) < self._limits.least_steps:
            self._notes.append(f"measured over {self._counted(found):.0f} steps in {found.seconds:.0f} s")
        if left:
            self._notes.append(f"{left} of its processes could not be ended: look at them with ps")
        use = self._rates_of_use()
        read, cpu_s, busy_s = use or (0.0, 0.0, 0.0)
        others = max(0.0, busy_s - cpu_s) / self._cpus
        if use is not None and cpu_s < _IDLE:
            self._notes.append(
                "its processes used next to no CPU time: what it starts elsewhere (srun, ssh, docker) is not confined"
            )
        if others > _DISTURBED:
            self._notes.append(
                f"other programs took {others:.0%} of its CPUs meanwhile: a job that has them alone is faster"
            )
        return PointResult(
            cpus=self._cpus,
            rate=Estimate(value, low, high, "measured"),
            unit=_UNITS[self._group],
            blocks=found.blocks,
            steps=round(self._counted(found)),
            steady_s=found.seconds,
            took_s=self._over_s - self._began_s,
            start_s=(self._first_s or self._over_s) - self._began_s,
            kind=self._kind,
            made_s=time.time(),
            process_bytes=self._memory_bytes,
            read_bytes_s=read,
            cpu_s=cpu_s,
            others=others,
            notes=tuple(self._notes),
        )

    def _step(self, said: Mapping[str, Any], now_s: float) -> None:
        told = [said[key] for key in ("at_s", "step", "samples")]
        if not all(0 <= each < COUNT_MOST for each in told):
            return  # not written by elastic.step
        at_s, step, samples = map(float, told)
        if not self._seen:
            self._group = "samples" if samples > 0 else "step"
        if self._steps and step <= self._steps[-1].value:
            return
        self._steps.append(Seen(at_s, step))
        self._add(Seen(at_s, samples if self._group == "samples" else step), now_s)

    def _note(self, group: Group, value: float, now_s: float) -> None:
        if not self._seen:
            self._group = group
        if group != self._group:
            return
        total = value if group == "rate" else self._count.total(value)
        if total is not None:
            self._add(Seen(now_s, total), now_s)

    def _add(self, entry: Seen, now_s: float) -> None:
        if self._first_s is None:
            self._first_s = now_s
        if len(self._seen) > 1 and entry.at_s - self._seen[-2].at_s < _APART_S:
            self._seen.pop()  # of entries at the same moment only the last counts
        self._seen.append(entry)

    def _found(self, warmup_s: float) -> Steady | None:
        return steady(self._seen, warmup_s, printed=self._group == "rate")

    def _short(self) -> Steady | None:
        """Return the steady part of a short run, if it is long enough to count."""
        if len(self._seen) < 3:
            return None
        span_s = self._seen[-1].at_s - self._seen[0].at_s
        if len(self._seen) < _SHORT_ENTRIES and span_s < self._limits.least_s:
            return None
        if span_s < min(_SHORT_S, self._limits.least_s):
            return None
        return self._found(_SHORT_WARMUP * span_s)

    def _counted(self, found: Steady) -> float:
        """Return the steps of the steady time; if only samples or rates were printed, their number of entries."""
        if self._group == "step":
            return found.counted
        last_s = self._seen[-1].at_s
        inside = [each for each in (self._steps or self._seen) if each.at_s >= last_s - found.seconds - 1e-9]
        return inside[-1].value - inside[0].value if self._steps else len(inside) - 1.0

    def _rates_of_use(self) -> tuple[float, float, float] | None:
        """Return bytes read, CPU seconds used, and CPU seconds of any program on its CPUs, per second of measured time.

        For a run too short for that, count from its first progress: data read at the start does not belong to samples.
        None for a run that was hardly looked at.
        """
        for since_s in (self._measuring_s, self._first_s):
            used = [each for each in self._used if since_s is not None and each["seen_s"] >= since_s]
            seconds = used[-1]["at_s"] - used[0]["at_s"] if used else 0.0
            if seconds >= _LOOKED_S:
                break
        else:
            return None
        read, cpu_s, busy_s = (max(0.0, used[-1][key] - used[0][key]) / seconds for key in _USE)
        return read, cpu_s, busy_s

    # -- messages if there is no point ---

    def _refuse(self, words: Sequence[str]) -> None:
        """Raise Unmeasured for a run that failed, UsageError for one that could not begin."""
        failed = self._failed or {}
        if failed.get("op") == "unstartable":
            raise UsageError(f"{self._name} cannot be started: {failed['why']}; is the command after -- right?")
        if failed.get("op") == "short":
            raise UsageError(
                f"{self._cpus} CPUs: only {failed['has']} are there: --cpus up to {failed['has']}, or an allocation "
                "with more"
            )
        if not self._had:
            why = words[-1] if words else "its guard ended without a word"
            raise Unmeasured(f"{self._name} did not start on {self._on}: {why}", self._output)
        if self._pattern is not None and self._pattern.said:
            raise UsageError(self._pattern.said)
        if code := failed.get("code"):
            how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            why = " (is there enough memory?)" if code == -9 else ""
            raise Unmeasured(f"{self._name} {how}{why} on {self._on}{self._last()}; {self._see()}", self._output)
        if failed.get("code") is None and not self._done:  # the guard was told to end by another party, such as Slurm
            why = f": {words[-1]}" if words else ""
            raise Unmeasured(f"the run of {self._name} on {self._on} was ended{why}; try again", self._output)

    def _too_little(self, *, ended: bool) -> str:
        took_s = self._over_s - self._began_s
        if self._seen and ended:
            trained_s = self._seen[-1].at_s - self._seen[0].at_s
            return (
                f"{self._name} ended by itself after {trained_s:.1f} s of training, before its rate was steady: let it "
                f"train longer, for {self._limits.warmup_s + self._limits.least_s:.0f} s at least"
            )
        if self._seen:
            return (
                f"{len(self._seen)} signs of progress on {self._on} in {took_s:.0f} s are too few for a rate: a "
                f"longer --timeout, or have it tell its progress more often; {self._see()}"
            )
        when = f"before it ended, after {took_s:.0f} s" if ended else f"within {took_s:.0f} s"
        wanted = "no line fits --regex" if self._pattern is not None else "no elastic.step() was called"
        if not self._lines.last and self._pattern is not None:
            return f"nothing was printed {when} on {self._on}: print the progress" + (
                ", step by step" if ended else " without a buffer (stdbuf -oL), or give a longer --timeout"
            )
        do = "another --regex" if self._pattern is not None else "--regex for such lines"
        if expression := suggested(self._recent):
            do = f"--regex {shlex.quote(expression)}"
        return (
            f"no throughput {when} on {self._on}: {wanted}{self._last()}: {do}, "
            f"elastic.step() in the script{'' if ended else ', or a longer --timeout'}; {self._see()}"
        )

    def _last(self) -> str:
        return f"; its last line was {self._lines.last[:160]!r}" if self._lines.last else ""

    def _see(self) -> str:
        return f"all that it printed is in {self._output}"
