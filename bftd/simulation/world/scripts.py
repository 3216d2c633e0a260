"""The users' scripts in the simulated world, and the true course of their training, whoever counted it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random

from elastic.store.file_names import CheckpointFile

BATCH = 32
"""The samples of a step, on any number of nodes."""

WAYS = ("error", "killed", "early", "stopped")
"""A worker fails with an error, by a signal, by ending with 0 while the others train, or by doing nothing any more."""

_STATE_BYTES = 1 << 10
_AHEAD = 4
_ALWAYS = 0.3
"""Of the scripts that are given a fault, this share fails at its step each time."""

_OLD_GROUP_S = 20.0
"""Workers whose driver is gone end within this time: DRIVER_LOST_S, and what their agent needs to notice it."""


class ScriptError(Exception):
    """A worker's script fails with this error."""


@dataclass
class ScriptFault:
    """A worker of rank `rank`, modulo the number of workers, fails at the end of a step, `times` times."""

    step: int
    rank: int
    way: str
    times: float


@dataclass
class Training:
    """One trainer's script, and its course as it really was.

    `ends_at_notice`: its handler of SIGTERM ends it with 0. `wrong` are the rules that its course has broken.
    """

    total_steps: int
    step_s: float
    random: Random
    ends_at_notice: bool = False
    highest: int = 0
    executed: int = 0
    groups: dict[tuple[str, int], Group] = field(default_factory=dict)
    faults: list[ScriptFault] = field(default_factory=list)
    guilty: dict[str, int] = field(default_factory=dict)
    """The numbers of workers that failed by themselves, by lease."""

    wrong: list[str] = field(default_factory=list)
    kept_step: int = 0
    """The highest step of which a checkpoint was acknowledged."""

    redone_s: float = 0.0
    """The longest time of training that was done again, at once."""

    saved_step: int = 0
    """The highest step of which a worker has made a checkpoint."""

    lost_as_planned: int = 0
    """The most steps that were done again after bftd itself had stopped all workers."""

    trained_on: bool = False
    """Whether workers have trained again after all of a group had trained to the end."""

    _folder: Path | None = None
    """The folder of the drivers' checkpoints."""

    _saved: set[int] = field(default_factory=set)
    _worked_s: float = 0.0
    _worked_at_s: dict[int, float] = field(default_factory=dict)
    _newest: Group | None = None
    _newest_s: float = 0.0

    def group(self, driver: str, generation: int, world: int) -> Group:
        """Return the group of workers of a generation of a driver, which its secret names."""
        return self.groups.setdefault((driver, generation), Group(self, world, len(self.groups)))

    @property
    def complete(self) -> bool:
        """Whether all workers of one group have trained to the end."""
        return any(len(group.well) == group.world for group in self.groups.values())

    # -- what the script does ---

    @property
    def can_fail(self) -> bool:
        """Whether the script trains, has steps before it, and no fault that is still to come."""
        return 0 < self.highest < self.total_steps - 1 and not any(fault.times > 0 for fault in self.faults)

    def give_fault(self, random: Random) -> ScriptFault:
        """Have the script fail at one of the next steps, once or each time."""
        step = min(self.total_steps, self.highest + 1 + random.randrange(_AHEAD))
        times = inf if random.random() < _ALWAYS else 1
        self.faults.append(fault := ScriptFault(step, random.randrange(8), random.choice(WAYS), times))
        return fault

    def fault_of(self, rank: int, world: int, step: int) -> str:
        """Return the way in which a worker fails at the end of a step, "" if it does not."""
        for fault in self.faults:
            if fault.step == step and fault.rank % world == rank and fault.times > 0:
                if fault.way == "early" and world == 1:
                    continue  # it alone would be all, and its end the training's
                fault.times -= 1
                return fault.way
        return ""

    def fails(self, lease: str) -> None:
        """Note a failure of a worker that is no consequence of another's."""
        self.guilty[lease] = self.guilty.get(lease, 0) + 1

    # -- what it comes to ---

    def trained(self, group: Group, step: int) -> None:
        """Note the end of a step of a group."""
        now_s = time.monotonic()
        if self._newest is None or group.number > self._newest.number:
            self._newest, self._newest_s = group, now_s
        elif group is not self._newest and now_s - self._newest_s > _OLD_GROUP_S:
            self.wrong.append(f"S4: two groups of workers train, {now_s - self._newest_s:.0f} s after the second began")
        self.executed += 1
        self.trained_on |= self.complete
        if not group.last and step <= self.highest:
            before = [one for one in self.groups.values() if one.last and one.number < group.number]
            if before and before[-1].is_stopped:
                self.lost_as_planned = max(self.lost_as_planned, before[-1].last - step + 1)
            self.redone_s = max(self.redone_s, self._worked_at_s[self.highest] - self._worked_at_s[step])
        self._worked_s += now_s - group.last_s if group.last else self.step_s
        group.last, group.last_s = step, now_s
        if step > self.highest:
            self.highest = step
            self._worked_at_s[step] = self._worked_s

    def saves(self, step: int) -> None:
        """Note that a worker saves a checkpoint, to send it."""
        self._saved.add(step)
        self.saved_step = max(self.saved_step, step)

    def kept(self, step: int) -> None:
        """Note that the driver has acknowledged a checkpoint: it has that one, or a newer one."""
        self.kept_step = max(self.kept_step, step)
        if self._folder is not None:
            files = filter(None, (CheckpointFile.parse(path.name) for path in self._folder.iterdir()))
            self._look_at(self._folder, max((file.step for file in files), default=0), "the driver has")

    def resumes(self, folder: Path, step: int) -> None:
        """Look at the checkpoint that a driver begins with: what was kept is there, and as it was saved."""
        self._folder = folder
        self._look_at(folder, max(step, 0), "a driver begins with")

    def _look_at(self, folder: Path, step: int, who: str) -> None:
        if step < self.kept_step:
            self.wrong.append(f"torn: {who} step {step}, and the checkpoint of {self.kept_step} was kept")
        elif step:
            (path,) = folder.glob(f"state-{step}-*.pt")
            if path.read_bytes() != content_of(step):
                self.wrong.append(f"torn: {who} {path.name}, which is not what was saved")

    def loaded(self, content: bytes) -> int:
        """Take the checkpoint that a worker begins with, empty if there is none; returns its step."""
        step = int.from_bytes(content[:8], "big")
        if step < self.kept_step:
            self.wrong.append(f"torn: workers begin at step {step}, and the checkpoint of {self.kept_step} was kept")
        if content and content != content_of(step):
            self.wrong.append(f"torn: workers begin with another content than that of step {step}")
        elif content and step not in self._saved:
            self.wrong.append(f"torn: workers begin with a checkpoint of step {step}, which none has saved")
        return step


class Group:
    """Workers that step together: none ends a step before all have come to it, and all fail when one is gone.

    `well` are the ranks that have trained to the end.
    """

    def __init__(self, training: Training, world: int, number: int) -> None:
        self.world = world
        self.number = number
        self.well: set[int] = set()
        self.last, self.last_s = 0, 0.0
        self.broken = self.is_stopped = False
        """Whether a worker of it is gone, and whether the first one was stopped by the driver."""

        self._training = training
        self._came: dict[int, int] = {}
        self._waiting: dict[int, threading.Event] = {}
        self._saves: dict[int, bool] = {}
        self._steps: dict[int, int] = {}

    def step(self, number: int, step: int) -> None:
        """Train one step, the group's `number`-th; raises ScriptError if it cannot be."""
        training, ended = self._training, self._waiting.setdefault(number, threading.Event())
        self._came[number] = self._came.get(number, 0) + 1
        if self._steps.setdefault(number, step) != step:
            training.wrong.append(f"torn: workers of one group train steps {self._steps[number]} and {step} at once")
        if self._came[number] < self.world:
            if not self.broken:
                ended.wait()
        else:
            time.sleep(training.step_s * training.random.uniform(0.9, 1.1) / self.world)
            if not self.broken:
                training.trained(self, step)
                del self._came[number], self._waiting[number]
                ended.set()
        if self.broken and number in self._waiting:
            time.sleep(training.random.uniform(0.01, 0.3))
            raise ScriptError("RuntimeError: Broken pipe")

    def saves(self, step: int, saves: bool) -> None:
        """Note whether a worker saves at the end of a step: all do, or none, as they wait for one another in it."""
        if self._saves.setdefault(step, saves) is not saves:
            self._training.wrong.append(f"torn: only a part of a group of {self.world} workers saves at step {step}")

    def ended_well(self, rank: int) -> None:
        """Note that a worker has trained to the end."""
        self.well.add(rank)

    def left(self, rank: int, *, is_stopped: bool = False) -> None:
        """Note that a worker is gone; `is_stopped`: its driver has stopped it."""
        if rank not in self.well:
            self.is_stopped = is_stopped if not self.broken else self.is_stopped
            self.broken = True
            for ended in self._waiting.values():
                ended.set()


def content_of(step: int) -> bytes:
    """Return the checkpoint of a step."""
    return step.to_bytes(8, "big") * (_STATE_BYTES // 8)
