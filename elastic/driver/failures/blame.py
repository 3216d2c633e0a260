"""The cause of a failure: bad luck, a node or the script. Pure: failures in, verdicts out.

Ends of workers that belong together are one *incident*. A node that fails again, or whose workers had restarted, opens
the next one. The first end of an incident is its cause. A worker that ends with other words is a peer that lost its
connection; one that ends with the very same words has the same fault. Open incidents count as follows:

1. An incident is settled by a checkpoint of a higher step, not by a step: a script that fails at the same batch gets
   to that batch every time. It is settled too when the others train past it without the nodes that failed. If a
   script saves nothing that bftd sees, an incident no longer counts after QUIET_S.
2. Three open incidents are the script's fault, unless one node failed in all of them and other nodes that took part
   did not.
3. The second failure of one node is the node's fault, if there are others that hardly fail: it is given back. The
   node is sound again once it has trained for SOUND_S and a checkpoint was saved. Until then one more failure is
   enough.
4. A node that cannot even start workers is at fault at once. When the first two nodes of a trainer report the same
   error, the script's environment is at fault. A trainer that had ready nodes before goes on until three report it
   and no node is left.
5. A worker that lost its link to the driver says nothing about the script: it counts for its node only.
6. If workers fail after one of their group has ended with 0, no node is at fault. The third time it is the script's
   fault, whatever is saved in between.
7. Whatever the mixture, a trainer ends after RESTARTS_MOST restarts that settled nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

TRIES = 3
"""The number of incidents at one saved step that are the script's fault."""

NODE_TRIES = 2
"""The number of failures of one node among healthy ones that are the node's fault."""

SOUND_S = 60.0
"""A node is sound again once it has trained for this long since its failure and a checkpoint was saved."""

QUIET_S = 3600.0
"""If a script saves nothing, its incidents count only for this long: its progress cannot be seen."""

RESTARTS_MOST = 10
"""The most restarts of a trainer at one saved step."""

# Giving a node back cost the others a moment; a restart in place cost all of them, so it weighs more.
_RESTART, _GIVEN_BACK = 3, 1

Whose = Literal["nobody's", "the node's", "the script's"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The party at fault, and the number of incidents (or of nodes that could not start).

    A `consequence` is the end of a peer: it says nothing about its node.
    """

    whose: Whose
    count: int = 1
    consequence: bool = False


_NOBODYS = Verdict("nobody's")


@dataclass(slots=True)
class _Incident:
    """A group of related failures.

    `saved` is the step saved before it, `reached` the highest step that a failing worker is known to have ended.
    """

    saved: int
    reached: int
    at_s: float
    what: str = ""
    nodes: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    began_anew: set[str] = field(default_factory=set)
    crash: bool = False
    given_back: bool = False


@dataclass(slots=True)
class _Record:
    """A node's failures since it was last sound, and the time since which it has trained again."""

    failures: int = 0
    failed_s: float = 0.0
    trains_since_s: float | None = None


class Blame:
    """One trainer's incidents; times are seconds on any one clock that never goes back, steps as in Progress."""

    def __init__(self) -> None:
        self._open: list[_Incident] = []
        self._saved = 0
        self._records: dict[str, _Record] = {}
        self._cannot: dict[str, list[str]] = {}
        self._early_ends = 0
        self._ever_ready = False

    # -- successes ---

    def ready(self) -> None:
        """Notes that a node is ready for workers: if other nodes could not start, the fault is theirs."""
        self._ever_ready = True
        self._cannot.clear()

    def began(self, node: str) -> None:
        """Notes that a worker starts on `node`: if it fails, that is a new incident."""
        if self._open:
            self._open[-1].began_anew.add(node)

    def stepped(self, node: str, step: int, at_s: float, members: Collection[str]) -> None:
        """Notes that a worker on `node` ended `step` in a group on `members`."""
        if not self._open and not self._records:
            return
        if (record := self._records.get(node)) is not None and record.trains_since_s is None:
            record.trains_since_s = at_s
        here = set(members)
        self._open = [one for one in self._open if step <= one.reached or not one.nodes or one.nodes & here]

    def saved(self, step: int, at_s: float) -> None:
        """Notes that the checkpoint of `step` is saved."""
        if step <= self._saved:
            return
        self._saved = step
        self._open = [incident for incident in self._open if incident.saved >= step]
        for node, record in list(self._records.items()):
            if record.trains_since_s is not None and at_s - record.trains_since_s >= SOUND_S:
                del self._records[node]

    # -- failures ---

    def failed(
        self, node: str, what: str, lost_link: bool, reached: int, at_s: float, members: Collection[str]
    ) -> Verdict:
        """Judges a worker on `node` that ended after step `reached` (-1: unknown) while the trainer had `members`.

        `what` is the worker's error: workers with the same fault report the same. `lost_link`: it had lost its driver.
        """
        incident = self._incident(node, at_s)
        if not incident.nodes:
            incident.what, incident.crash = what, not lost_link
        incident.others |= set(members)
        incident.reached = max(incident.reached, reached)
        if incident.what != what:
            return Verdict("nobody's", consequence=True)
        incident.nodes.add(node)
        record = self._record(node, at_s)
        if self._is_scripts(at_s):
            return Verdict("the script's", len(self._open))
        if not incident.given_back and self._stands_out(node, incident, members):
            incident.given_back = True
            return Verdict("the node's", record.failures)
        return _NOBODYS

    def absent(self, node: str, at_s: float) -> Verdict:
        """Judges a ready node that does not train: the node is at fault, unless this uses up all restarts."""
        incident = self._incident(node, at_s)
        incident.nodes.add(node)
        incident.given_back = True
        record = self._record(node, at_s)
        over = self._used_up(at_s) >= RESTARTS_MOST * _RESTART
        return Verdict("the script's", len(self._open)) if over else Verdict("the node's", record.failures)

    def ended_early(self) -> Verdict:
        """Judges workers that failed after one of their group had ended with 0."""
        self._early_ends += 1
        return Verdict("the script's" if self._early_ends >= TRIES else "nobody's", self._early_ends)

    def workers_failed(self, at_s: float) -> Verdict:
        """Judges a group whose workers all ended without success; right after a reported failure it belongs to that."""
        last = self._open[-1] if self._open else None
        if last is None or not last.nodes or last.began_anew:
            self._open.append(_Incident(self._saved, self._saved, at_s, crash=True))
        return Verdict("the script's", len(self._open)) if self._is_scripts(at_s) else _NOBODYS

    def cannot(self, node: str, text: str, ready: int, *, sure: bool = False) -> Verdict:
        """Judges a node that cannot start workers, with its reason; `ready` nodes of the trainer can.

        `sure`: the cause is, as far as one can tell, in the image that all nodes get. If no node was ever ready, no
        second one is tried.
        """
        reporters = self._cannot.setdefault(text, [])
        reporters.append(node)
        nodes = {one for names in self._cannot.values() for one in names}
        alike, needed = len(set(reporters)), TRIES if self._ever_ready else 2
        only = not self._ever_ready and len(nodes) == 1 and len(reporters) >= TRIES
        # Different sentences may have one cause, but it takes more of them to rule out several bad nodes.
        if not ready and ((sure and not self._ever_ready) or alike >= needed or len(nodes) >= 2 * needed or only):
            return Verdict("the script's", alike)
        return Verdict("the node's", 1)

    # -- the incidents ---

    def _incident(self, node: str, at_s: float) -> _Incident:
        """Returns the incident that a failure of `node` belongs to."""
        if self._open:
            last = self._open[-1]
            if last.nodes and node not in last.nodes and node not in last.began_anew:
                return last
        self._open.append(_Incident(self._saved, self._saved, at_s))
        return self._open[-1]

    def _record(self, node: str, at_s: float) -> _Record:
        record = self._records.setdefault(node, _Record())
        if not self._saved and at_s - record.failed_s > QUIET_S:
            record.failures = 0
        record.failures, record.failed_s, record.trains_since_s = record.failures + 1, at_s, None
        return record

    def _stands_out(self, node: str, incident: _Incident, members: Collection[str]) -> bool:
        """Whether a node keeps failing while another one is sound; peers of its workers fail now and then."""
        failures = self._records[node].failures
        others = {other: self._records.get(other, _Record()).failures for other in members if other != node}
        sound = [other for other, count in others.items() if other not in incident.nodes and 2 * count < failures]
        return failures >= NODE_TRIES and bool(sound) and failures > max(others.values())

    def _is_scripts(self, at_s: float) -> bool:
        if self._used_up(at_s) >= RESTARTS_MOST * _RESTART:
            return True
        counted = [incident for incident in self._open if incident.crash and self._is_recent(incident, at_s)]
        if len(counted) < TRIES:
            return False
        everywhere = set.intersection(*(incident.nodes for incident in counted))
        took_part = set().union(*(incident.nodes | incident.others for incident in counted))
        return not everywhere or took_part <= everywhere

    def _used_up(self, at_s: float) -> int:
        """Returns the cost of the open incidents, in thirds of a restart."""
        weights = [
            (_GIVEN_BACK if self._is_recent(incident, at_s) else 0) if incident.given_back else _RESTART
            for incident in self._open
        ]
        return sum(weights)

    def _is_recent(self, incident: _Incident, at_s: float) -> bool:
        return bool(self._saved) or at_s - incident.at_s <= QUIET_S
