"""The job's own log of its nodes: one line at each change, in the words of `bft explain`.

Pure: the training group comes in once a second, lines come out. A change is reported once it has happened and its speed
is known, or when that takes long. A plan that was not carried out is never reported as if it were. Changes in quick
succession become one, and if a trainer's nodes change all the time it gets a summary now and then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bftd.protocol import changes
from slurm_plugin.nodeset import fold

_UNMEASURED_S = 10.0
"""A training group is reported without its speed after this time: its steps are slow, or the script reports none."""

_UNFORMED_S = 30.0
"""A group whose workers are there but have not ended a step is reported after this time."""

_SPAN_S = 60.0
_LINES_MOST = 4
"""The most lines within that span; further changes are summed up in one."""

_WHYS_SHOWN = 2
_SENTENCES_KEPT = 64


class ShownPilot(Protocol):
    """A pilot as the log shows it; `granted` and `reason` are sentences."""

    lease: str
    node: str
    granted: str
    reason: str
    revoked: bool
    expiring: bool


@dataclass(frozen=True, slots=True)
class TrainingRate:
    """The measured training: how many groups have stepped, the `nodes` of the last one, and its speed.

    `groups` is 0 for a script that reports no steps. `samples_per_s` is 0 and `ends_in_s` None if unknown.
    """

    groups: int = 0
    nodes: int = 0
    samples_per_s: float = 0.0
    ends_in_s: float | None = None


class Changes:
    """One trainer's changes; times are seconds on a monotonic clock."""

    def __init__(self, who: str, *, resumes: bool) -> None:
        """`who` is the trainer's name in the daemon's sentences; `resumes`: it begins with a checkpoint."""
        self._who = who
        self._verb = changes.RESUMES if resumes else changes.STARTS
        self._group: dict[str, ShownPilot] = {}
        self._unlogged: dict[str, ShownPilot] = {}
        self._groups = 0
        self._suspended = False
        self._pending: frozenset[str] = frozenset()
        self._pending_s = 0.0
        self._measured_s: float | None = None
        self._lines_s: deque[float] = deque()
        self._held: list[int] = []
        self._planned: dict[str, set[str]] = {}

    def listed(self, leases: Iterable[tuple[str, str]]) -> None:
        """Notes the daemon's grants: ids of leases, each with the sentence of the decision that granted it."""
        now: dict[str, set[str]] = {}
        for lease, sentence in leases:
            now.setdefault(sentence, set()).add(lease)
        for sentence, ids in now.items():
            known = self._planned.get(sentence, set())
            # A sentence whose leases are all gone was another decision for the same nodes.
            self._planned[sentence] = known | ids if known & ids else ids
        while len(self._planned) > _SENTENCES_KEPT:
            del self._planned[next(iter(self._planned))]

    def look(self, now_s: float, present: Sequence[ShownPilot], measured: TrainingRate) -> str | None:
        """Returns the line to write now, if any, when the workers of the `present` pilots train."""
        group = {member.lease: member for member in present}
        if not group:
            return self._summary(now_s, measured) if self._suspended else None  # else it is between two groups
        if group.keys() == self._group.keys():
            self._pending, self._groups = frozenset(group), measured.groups
            return self._summary(now_s, measured)
        if group.keys() != self._pending:
            self._pending, self._pending_s, self._measured_s = frozenset(group), now_s, None
            self._unlogged = group
        if not self._settled(now_s, len(group), measured):
            return None
        line = self._change(group, measured)
        self._group, self._groups, self._suspended = group, measured.groups, False
        return self._within_bounds(now_s, line)

    def suspended(self, now_s: float, step: int) -> str | None:
        """Returns the line for a trainer that has no nodes left and goes on later from `step`."""
        gone = list((self._group or self._unlogged).values())
        self._group, self._unlogged, self._verb = {}, {}, changes.RESUMES
        self._pending, self._suspended = frozenset(), True
        back = f"{changes.SUSPENDED.past} {fold(member.node for member in gone)}" if gone else "was suspended"
        return self._within_bounds(now_s, f"{back} at step {step}{self._because(gone)}; resumes on any nodes")

    def _settled(self, now_s: float, nodes: int, measured: TrainingRate) -> bool:
        """Whether the change has happened, as far as can be known."""
        waited_s = now_s - self._pending_s
        formed = measured.groups > self._groups and measured.nodes == nodes
        if not formed:
            return waited_s >= (_UNFORMED_S if measured.groups else _UNMEASURED_S)
        if measured.samples_per_s > 0.0:
            if self._measured_s is not None and self._measured_s < now_s:  # by now the daemon has taken it into account
                return True
            self._measured_s = now_s
        return waited_s >= _UNMEASURED_S

    def _change(self, group: Mapping[str, ShownPilot], measured: TrainingRate) -> str:
        added = [member for lease, member in group.items() if lease not in self._group]
        gone = [member for lease, member in self._group.items() if lease not in group]
        before, after = len(self._group), len(group)
        new = fold(member.node for member in added)
        old = fold(member.node for member in gone)
        if not before:
            verb, rest = self._verb, changes.begun(after, new)
        elif not gone:
            verb, rest = changes.GROWS, changes.grown(before, after, new)
        elif not added:
            verb, rest = changes.SHRINKS, changes.shrunk(before, after, old, _how(gone))
        else:
            verb = changes.GROWS if after > before else changes.SHRINKS
            went = f"{verb.past} from {before} to" if after != before else "went on with"
            line = f"{went} {changes.nodes(after)} ({new} new, {old} {_how(gone)})"
            return f"{line}{self._because(gone)}{_speed(measured)}"
        why = self._because(gone) if gone else self._gain(added, group, measured)
        return f"{verb.past}{rest}{why}{_speed(measured)}"

    def _gain(self, added: Sequence[ShownPilot], group: Mapping[str, ShownPilot], measured: TrainingRate) -> str:
        """Returns why nodes were added, and how many of the planned ones are still missing."""
        sentences = Counter(member.granted for member in added if member.granted)
        planned = sum(len(self._planned.get(sentence, ())) for sentence in sentences)
        reached = sum(member.granted in sentences for member in group.values())
        missing = f", {reached} of {changes.nodes(planned)} planned" if 0 < reached < planned else ""
        whys = [changes.why_of(sentence, self._who) for sentence, _ in sentences.most_common(_WHYS_SHOWN)]
        if measured.samples_per_s > 0.0:  # the gain that was expected is known by now
            whys = [why for why in whys if not why.endswith((" expected", changes.UNKNOWN_SPEED))]
        whys = [why for why in whys if why]
        return f"{missing}: {'; '.join(whys)}" if whys else missing

    def _because(self, gone: Iterable[ShownPilot]) -> str:
        whys: Counter[str] = Counter()
        for member in gone:
            why = changes.why_of(member.reason, self._who)
            whys[why.removeprefix(f"{member.node} ").removeprefix("is ")] += 1
        shown = [why for why, _ in whys.most_common(_WHYS_SHOWN) if why]
        return f": {'; '.join(shown)}" if shown else ""

    # -- at most a few lines a minute ---

    def _within_bounds(self, now_s: float, line: str) -> str | None:
        if self._held or self._full(now_s):
            self._held.append(len(self._group))
            return None
        self._lines_s.append(now_s)
        return line

    def _full(self, now_s: float) -> bool:
        while self._lines_s and now_s - self._lines_s[0] >= _SPAN_S:
            self._lines_s.popleft()
        return len(self._lines_s) >= _LINES_MOST

    def _summary(self, now_s: float, measured: TrainingRate) -> str | None:
        """Returns the summary of the changes held back, once another line is allowed."""
        if not self._held or self._full(now_s):
            return None
        count, low, high = len(self._held), min(self._held), max(self._held)
        self._held.clear()
        self._lines_s.append(now_s)
        sizes = changes.nodes(high) if low == high else f"between {low} and {changes.nodes(high)}"
        times = f"changed {count} more time{'s' * (count > 1)}, {sizes}"
        if not self._group:
            return f"{times}; now suspended, resumes on any nodes"
        on = f"{changes.nodes(len(self._group))} ({fold(member.node for member in self._group.values())})"
        return f"{times}; now on {on}{_speed(measured)}"


def _how(gone: Iterable[ShownPilot]) -> str:
    """Whether nodes were given back or lost, in words."""
    asked = all(member.revoked or member.expiring or member.reason == changes.ASKED for member in gone)
    return "given back" if asked else "lost"


def _speed(measured: TrainingRate) -> str:
    rate = f"; {measured.samples_per_s:.4g} samples/s" if measured.samples_per_s > 0.0 else ""
    return (
        rate if measured.ends_in_s is None else f"{rate}{',' if rate else ';'} about {span(measured.ends_in_s)} to go"
    )


def span(seconds: float) -> str:
    """Returns an estimated time in words, in two units at most."""
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} days {hours} h" if hours else f"{days} days"
