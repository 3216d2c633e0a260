"""A stand-in of slurmctld at a centre's size: nodes, a queue that moves, preemption, and restarts. Times are simulated.

Its schedulers are simple ones: what arrives starts at once where it finds idle nodes, and every `_CYCLE_S` what waits
does, by preemption where none are left. Most of the queue waits for other jobs or for more nodes than there are free.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice

from slurm_plugin.read.types import Scheduler, Snapshot

REGULAR, PILOTS = "batch", "elastic"
# Of the nodes so many have a regular job on average; the rest is idle or lent.
_BUSY_SHARE = 0.1
_CYCLE_S = 30.0
# An array has so many tasks where there are nodes for them: on a fifth of the nodes at most, or nothing would be idle.
_ARRAY_EVERY_S, _ARRAY_TASKS, _ARRAY_SHARE = 600.0, 1000, 0.2
_RESTART_EVERY_S, _DOWN_POLLS, _UNKNOWN_POLLS = 1200.0, 2, 2
_FIRST_ARRAY_S, _FIRST_RESTART_S = 20.0, 100.0
_STARTS_A_CYCLE = 100
_NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=32 CPUAlloc={used} CPUTot=64 CPULoad=0.10 AvailableFeatures=a100,ib"
    " ActiveFeatures=a100,ib Gres=gpu:a100:4 NodeAddr={name} NodeHostName={name} OS=Linux RealMemory=512000"
    " AllocMem=0 Sockets=2 State={state} ThreadsPerCore=1 Weight=1 Partitions=batch,elastic"
    " CfgTRES=cpu=64,mem=500G,billing=64,gres/gpu=4 AllocTRES={tres}\n"
)
_PARTITION = (
    "PartitionName={} Nodes={} State=UP MaxTime=UNLIMITED PriorityTier={} OverSubscribe=NO MaxNodes=UNLIMITED\n"
)
_FREE = "\x1f".join(["(null)", "", "", "0", "NO", "64", "64", "0", "N/A"])
_LIMIT_S = 3600.0


@dataclass(slots=True)
class Waits:
    """A job that waits: `tasks` of `count` nodes, each for `runs_s`. One without `runs_s` never starts."""

    id: str
    count: int
    runs_s: float
    tasks: int = 1
    done: int = 0


class Controller:
    """The stand-in; `waiting` jobs are kept in the queue."""

    def __init__(self, nodes: int, waiting: int, rng: random.Random, now_s: float) -> None:
        self.names = [f"n{number:05d}" for number in range(nodes)]
        self.pilots: dict[str, tuple[str, str, str, float]] = {}
        self.waiting: dict[str, Waits] = {}
        self.started = self.preempted = self.restarts = 0
        self._rng = rng
        self._now_s = self._cycled_s = self._array_s = self._restarted_s = now_s
        self._number = 100_000
        self._running: dict[str, tuple[tuple[str, ...], float]] = {}
        self._ends: list[tuple[float, str]] = []
        self._idle = dict.fromkeys(self.names)
        self._silent_polls = self._unknown_polls = 0
        # one a second at least, five at most, of two nodes in the middle
        self._starts_a_s = min(5.0, max(1.0, nodes * _BUSY_SHARE / 250.0))
        self._runs_s = nodes * _BUSY_SHARE / self._starts_a_s / 2.0
        self._owed = 0.0
        # for as long as this one runs, no job of all nodes can start
        block = tuple(self.names[: max(1, nodes // 50)])
        self._running["1"] = block, now_s
        for name in block:
            del self._idle[name]
        for number in range(waiting):
            big = number % 3 == 0
            self._wait(nodes if big else rng.randint(1, 8), 0.0)

    def advance(self, now_s: float, works: bool = True) -> None:
        """Let time pass; without `works` nothing arrives yet."""
        passed_s, self._now_s = now_s - self._now_s, now_s
        while self._ends and self._ends[0][0] <= now_s:
            self._idle.update(dict.fromkeys(self._running.pop(heappop(self._ends)[1])[0]))
        if not works:
            self._array_s = now_s - _ARRAY_EVERY_S + _FIRST_ARRAY_S
            self._restarted_s = now_s - _RESTART_EVERY_S + _FIRST_RESTART_S
            return
        self._owed += passed_s * self._starts_a_s
        while self._owed >= 1.0:
            self._owed -= 1.0
            waits = self._wait(self._rng.choice((1, 1, 2, 4)), self._runs_s * self._rng.uniform(0.5, 1.5))
            self._start(waits, preempts=True)
        if now_s - self._array_s >= _ARRAY_EVERY_S:
            self._array_s = now_s
            self._wait(1, 90.0, min(_ARRAY_TASKS, int(_ARRAY_SHARE * len(self.names))))
        if now_s - self._cycled_s >= _CYCLE_S:
            self._cycle()
        self._silent_polls = max(0, self._silent_polls - 1)
        if not self._silent_polls:
            self._unknown_polls = max(0, self._unknown_polls - 1)
        if now_s - self._restarted_s >= _RESTART_EVERY_S:
            self._restarted_s, self.restarts = now_s, self.restarts + 1
            self._silent_polls, self._unknown_polls = _DOWN_POLLS + 1, _UNKNOWN_POLLS + 1

    def _cycle(self) -> None:
        """Slurm's backfill: the first that can start do, on idle nodes, and by preemption."""
        self._cycled_s, left = self._now_s, _STARTS_A_CYCLE
        for waits in [one for one in self.waiting.values() if one.runs_s]:
            while left and waits.done < waits.tasks and self._start(waits, preempts=left > _STARTS_A_CYCLE - 5):
                left -= 1

    def _wait(self, count: int, runs_s: float, tasks: int = 1) -> Waits:
        self._number += 1
        waits = self.waiting[str(self._number)] = Waits(str(self._number), count, runs_s, tasks)
        return waits

    def _start(self, waits: Waits, preempts: bool) -> bool:
        """Start a job, or one task; whether it did."""
        free = list(islice(self._idle, waits.count))
        if len(free) < waits.count and preempts:
            victims = self._rng.sample(sorted(self.pilots), min(len(self.pilots), waits.count - len(free)))
            for name in victims:
                self.end_pilot(name)
                self.preempted += 1
            free = [*free, *victims]
        if len(free) < waits.count:
            return False
        names = tuple(free[: waits.count])
        for name in names:
            del self._idle[name]
        waits.done += 1
        id_ = waits.id if waits.tasks == 1 else f"{waits.id}_{waits.done}"
        if waits.done == waits.tasks:
            del self.waiting[waits.id]
        self._running[id_] = names, self._now_s
        heappush(self._ends, (self._now_s + waits.runs_s, id_))
        self.started += 1
        return True

    # -- what drivers and the daemon do ---

    def start_pilot(self, node: str, user: str, trainer: str) -> str | None:
        """Start a pilot at once or never; its job's id."""
        if node not in self._idle or self._silent_polls:
            return None
        del self._idle[node]
        self._number += 1
        self.pilots[node] = str(self._number), user, trainer, self._now_s
        return str(self._number)

    def end_pilot(self, node: str) -> None:
        """End the pilot of a node."""
        if self.pilots.pop(node, None) is not None:
            self._idle[node] = None

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End pilots by their jobs."""
        for node in [node for node, pilot in self.pilots.items() if pilot[0] in set(job_ids)]:
            self.end_pilot(node)

    def idle_and_lent(self) -> tuple[int, int]:
        """Nodes without a regular job, and those of them that have a pilot."""
        return len(self._idle) + len(self.pilots), len(self.pilots)

    # -- what Slurm's commands print ---

    def answer(self, command: str, arguments: Sequence[str]) -> str | None:
        """What a command prints; None where the controller does not answer."""
        if self._silent_polls:
            return None
        if command == "squeue":
            form = next(word for word in arguments if word.lower().startswith("--format="))
            if form.startswith("--Format="):
                return self._wishes(form[len("--Format=JobArrayID:0") : form.index(",MinTime")])
            return self._queue(form[len("--format=%i") : form.index("%u")])
        if arguments[:2] == ("show", "nodes"):
            return self._nodes()
        if arguments[:2] == ("show", "reservation"):
            return "No reservations in the system\n"
        if arguments[:2] == ("show", "partition"):
            span = f"n[{self.names[0][1:]}-{self.names[-1][1:]}]"
            return _PARTITION.format(REGULAR, span, 10) + _PARTITION.format(PILOTS, span, 1)
        return None

    def dated(self, snapshot: Snapshot, now_s: float) -> Snapshot:
        """A snapshot by the simulated clock, with what sdiag would tell of cycles."""
        scheduler = Scheduler(read=True, interval_s=_CYCLE_S, cycle_s=2.0, cycled_s=self._cycled_s, array_most=20)
        return replace(snapshot, time_s=now_s, begun_s=now_s, scheduler=scheduler)

    def _nodes(self) -> str:
        lines = []
        for name in self.names:
            used = name not in self._idle
            state = ("ALLOCATED" if used else "IDLE") if not self._unknown_polls else "UNKNOWN"
            tres = "cpu=64,mem=500G,gres/gpu=4" if used else ""
            lines.append(_NODE.format(name=name, state=state, used=64 if used else 0, tres=tres))
        return "".join(lines)

    def _wishes(self, separator: str) -> str:
        rows = [["JOBID", "MIN_TIME", "REQ_SWITCH", "TRES_ALLOC"]]
        rows += [
            [waits.id, "N/A", "0", f"cpu={64 * waits.count},node={waits.count}"] for waits in self.waiting.values()
        ]
        return "\n".join(separator.join(row) + separator for row in rows) + "\n"

    def _queue(self, separator: str) -> str:
        rows = [["JOBID", *"ABCDEFGHIJKLMNOPQ"]]
        for waits in self.waiting.values():
            id_ = waits.id if waits.tasks == 1 else f"{waits.id}_[{waits.done + 1}-{waits.tasks}]"
            asleep = not waits.runs_s and waits.count <= 8
            reason, depends = ("Dependency", "afterok:1(unfulfilled)") if asleep else ("Priority", "(null)")
            limit = f"{int(waits.runs_s // 60) + 1}:00" if waits.runs_s else "1-00:00:00"
            user = f"user{int(waits.id) % 300}"
            first = [id_, user, REGULAR, "PENDING", "", "(null)", "N/A", "1700000000", limit, reason]
            rows.append([*first, str(waits.count), depends, "100", "(null)", "acc", _FREE, "job", "(null)"])
        for id_, (names, start_s) in self._running.items():
            limit = "30-00:00:00" if id_ == "1" else "1:00:00"
            at = [f"{start_s:.0f}", "1700000000"]
            first = [id_, "user1", REGULAR, "RUNNING", ",".join(names), "(null)", *at, limit]
            rows.append([*first, "None", str(len(names)), "(null)", "100", "(null)", "acc", _FREE, "job", "(null)"])
        for node, (id_, user, trainer, start_s) in self.pilots.items():
            first = [id_, user, PILOTS, "RUNNING", node, "(null)", f"{start_s:.0f}", "1700000000", "1-00:00:00"]
            rows.append([*first, "None", "1", "(null)", "1", "(null)", "acc", _FREE, "bft", f"bft {trainer} pilot"])
        return "\n".join(separator.join(row) + separator for row in rows) + "\n"
