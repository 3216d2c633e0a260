"""The client for notebooks and scripts: what `bft` shows, as typed objects."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote, urlencode

from bftd.client.answers import Event, Explanation, Node, NodeExplanation, Pause, Status, Trainer
from bftd.client.past import History, Usage
from bftd.client.shapes import read
from bftd.client.shown import Rows
from bftd.errors import BftError, DaemonUnreachable, TimedOut, UsageError
from bftd.http import client
from bftd.protocol.address import is_path

# A moment: unix seconds, a datetime (a naive one is of this host's clock), or how long ago.
When = float | datetime | timedelta
FINISHED: Literal["finished"] = "finished"
# A daemon that restarts is back within seconds; one that was away for longer has to be started by somebody.
_AWAY_S = 120.0


class Client:
    """Asks the daemon of this host, or the one at `address`: the path of its socket, or [user@]host:port.

    Without an address it is found as `bft` finds it: $BFTD_SOCKET, else the configuration (`config`, $BFTD_CONFIG,
    /etc/bftd/bftd.toml). Every method raises DaemonUnreachable when nobody answers and ApiError when the daemon
    refuses; each error is one line.
    """

    def __init__(self, address: str = "", *, config: str | None = None, timeout_s: float = client.TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        if not address:
            self._daemon = client.find(config)
        elif is_path(address):
            self._daemon = client.Client(address)
        else:
            munge_socket = os.environ.get(client.MUNGE_SOCKET_VARIABLE, "")
            self._daemon = client.Client(tcp=address, munge_socket=munge_socket)

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    @property
    def address(self) -> str:
        """Where the daemon is."""
        return self._daemon.address

    def status(self) -> Status:
        """The daemon now: nodes in groups, trainers, pauses and alarms, the last decisions."""
        return read(Status, self._get("/v1/status?nodes=folded"))

    def nodes(self) -> Rows[Node]:
        """Every node of the harvested partition."""
        return Rows(read(Status, self._get("/v1/status")).nodes)

    def trainers(self) -> Rows[Trainer]:
        """The trainers that the daemon knows now, those that ended lately among them."""
        return Rows(self.status().trainers)

    def trainer(self, id_: str) -> Trainer:
        """One trainer with its curve and what its resizes cost; BftError where only the ledger remembers it."""
        found = self.explain(id_, limit=1).trainer
        if found is None:
            raise BftError(f"trainer {id_} has ended some time ago: explain({id_!r}) has what the ledger knows of it")
        return found

    def explain(self, id_: str, limit: int = 50) -> Explanation:
        """One trainer and the last sentences about it; ApiError with status 404 where nobody knows it."""
        return read(Explanation, self._get(f"/v1/trainers/{quote(str(id_), safe='')}/explain?limit={limit}"))

    def explain_node(self, name: str) -> NodeExplanation:
        """Why one node is or is not lent, and what was decided about it; ApiError (404) where there is none."""
        return read(NodeExplanation, self._get(f"/v1/nodes/{quote(name, safe='')}/explain"))

    def history(self, since: When | None = None, until: When | None = None, step_s: float | None = None) -> History:
        """Nodes by state and trainers over time, averaged over `step_s`; without times as the daemon has it."""
        asked = {"since": _seconds(since), "until": _seconds(until), "step": step_s}
        return read(History, self._get("/v1/history" + _query(asked)))

    def usage(self, since: When | None = None, until: When | None = None, by: str | Sequence[str] = "user") -> Usage:
        """Node-seconds by user, account or both: all for administrators, one's own for anybody else."""
        asked = {"since": _seconds(since), "until": _seconds(until), "by": by if isinstance(by, str) else ",".join(by)}
        return read(Usage, self._get("/v1/usage" + _query(asked)))

    def events(self, after: int = 0, limit: int = 1000) -> Rows[Event]:
        """The ledger's events behind the one with rowid `after`, oldest first: all, or of one's own trainers."""
        told = self._get(f"/v1/events?after={after}&limit={limit}").get("events")
        return Rows(read(Event, event) for event in told or ())

    def pause(
        self, why: str, *, nodes: Sequence[str] = (), user: str = "", account: str = "", release: bool = False
    ) -> Rows[Pause]:
        """Lend no more, at all or on nodes or to a user or account; for administrators. Returns what is paused."""
        told = self._daemon.pause(_what(nodes, user, account), why, release)
        return _pauses(told)

    def resume(
        self, *, nodes: Sequence[str] = (), user: str = "", account: str = "", everything: bool = False
    ) -> Rows[Pause]:
        """Lift a pause, or every one; for administrators. Returns what is still paused."""
        return _pauses(self._daemon.resume({"all": True} if everything else _what(nodes, user, account)))

    def tune(self, **changes: Any) -> Mapping[str, Any]:
        """Change keys that are tunable, t_fwd_s=300.0; for administrators. Returns all that are, with their values."""
        return self._daemon.tune(**changes)

    def wait(
        self,
        trainer: str,
        until: Literal["finished"] | int = FINISHED,
        timeout_s: float | None = None,
        every_s: float = 2.0,
    ) -> Trainer:
        """Wait until a trainer has finished, or until so many nodes or more work for it; returns it as it is then.

        A daemon that restarts meanwhile is waited for. Raises TimedOut, ApiError (404) for a trainer that nobody knows,
        and BftError for one that finished without ever having had the nodes.
        """
        wanted = 0 if until == FINISHED else until
        if isinstance(wanted, (bool, str)) or (wanted < 1 and until != FINISHED):
            raise UsageError(f'until must be "finished" or a number of nodes, not {until!r}')
        begun_s = heard_s = time.monotonic()
        seen: Trainer | None = None
        while True:
            try:
                seen = self._now(trainer, seen)
                heard_s = time.monotonic()
            except DaemonUnreachable:
                if time.monotonic() - heard_s > _AWAY_S:
                    raise
            else:
                if seen.finished and wanted:
                    raise BftError(f"trainer {trainer} has finished ({_exit(seen)}): it will not have {wanted} nodes")
                if seen.finished or (wanted and seen.working >= wanted):
                    return seen
            waited_s = time.monotonic() - begun_s
            if timeout_s is not None and waited_s >= timeout_s:
                raise TimedOut(f"trainer {trainer} {_is(seen)} after {waited_s:.0f} s: wait longer, or see explain")
            left_s = every_s if timeout_s is None else min(every_s, timeout_s - waited_s)
            time.sleep(max(0.0, left_s))

    def _now(self, id_: str, before: Trainer | None) -> Trainer:
        """A trainer as it is; one that only the ledger remembers has finished, as its last decision says."""
        told = self.explain(id_, limit=20)
        if told.trainer is not None:
            return told.trainer
        codes = [each.decision.get("exit_code") for each in told.decisions if isinstance(each.decision, Mapping)]
        known = [code for code in codes if isinstance(code, int)]
        last = before.to_dict() if before is not None else {"id": id_}
        return read(Trainer, last | {"state": FINISHED, "working": 0, "exit_code": known[-1] if known else None})

    def _get(self, path: str) -> dict[str, Any]:
        return self._daemon.request("GET", path, timeout_s=self._timeout_s)


def _pauses(told: Mapping[str, Any]) -> Rows[Pause]:
    return Rows(read(Pause, item) for item in told.get("pauses") or ())


def _what(nodes: Sequence[str], user: str, account: str) -> dict[str, Any]:
    """What a pause is of, as the API takes it; nothing is everything."""
    if isinstance(nodes, str):
        raise UsageError(f"nodes must be a list of names, not {nodes!r}")
    named: dict[str, Any] = {"nodes": list(nodes), "user": user, "account": account}
    return {name: value for name, value in named.items() if value}


def _seconds(when: When | None) -> float | None:
    """Unix seconds of a moment."""
    if isinstance(when, timedelta):
        return time.time() - when.total_seconds()
    return when.timestamp() if isinstance(when, datetime) else when


def _query(asked: Mapping[str, Any]) -> str:
    given = {name: value for name, value in asked.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _is(seen: Trainer | None) -> str:
    if seen is None:
        return "was not heard of"
    return f"is {seen.state} on {seen.working} node{'' if seen.working == 1 else 's'}"


def _exit(seen: Trainer) -> str:
    return "nobody knows how" if seen.exit_code is None else f"exit code {seen.exit_code}"
