"""The client for notebooks and scripts: the data of `bft` as typed objects."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote, urlencode

from bftd import api_client
from bftd.base.errors import BftError, DaemonUnreachable, TimedOut, UsageError
from bftd.base.format import counted
from bftd.client.decode import read
from bftd.client.display import Rows
from bftd.client.history import History, Usage
from bftd.client.models import Event, Explanation, Node, NodeExplanation, Pause, Status, Trainer
from bftd.protocol.address import is_path

# A time: unix seconds, a datetime (naive ones are in this host's time zone), or a timedelta before now.
When = float | datetime | timedelta
FINISHED: Literal["finished"] = "finished"
# A daemon that restarts is back within seconds; after a longer absence somebody has to start it.
_AWAY_S = 120.0


class Client:
    """A client of the daemon on this host, or the one at `address`: the path of its socket, or [user@]host:port.

    Without an address the daemon is found as `bft` finds it: $BFTD_SOCKET, else the configuration (`config`,
    $BFTD_CONFIG, /etc/bftd/bftd.toml). Every method raises DaemonUnreachable if the daemon does not answer, and
    ApiError if it refuses; each error is one line.
    """

    def __init__(
        self, address: str = "", *, config: str | None = None, timeout_s: float = api_client.TIMEOUT_S
    ) -> None:
        self._timeout_s = timeout_s
        if not address:
            self._daemon = api_client.find(config)
        elif is_path(address):
            self._daemon = api_client.ApiClient(address)
        else:
            munge_socket = os.environ.get(api_client.MUNGE_SOCKET_VARIABLE, "")
            self._daemon = api_client.ApiClient(tcp=address, munge_socket=munge_socket)

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    @property
    def address(self) -> str:
        """The address of the daemon."""
        return self._daemon.address

    def status(self) -> Status:
        """Return the daemon's status: nodes in groups, trainers, pauses and alarms, the last decisions."""
        return read(Status, self._get("/v1/status?nodes=folded"))

    def nodes(self) -> Rows[Node]:
        """Return every node of the harvested partition."""
        return Rows(read(Status, self._get("/v1/status")).nodes)

    def trainers(self) -> Rows[Trainer]:
        """Return the trainers that the daemon knows now, including those that ended lately."""
        return Rows(self.status().trainers)

    def trainer(self, id_: str) -> Trainer:
        """Return one trainer with its curve and resize costs; BftError if only the ledger remembers it."""
        found = self.explain(id_, limit=1).trainer
        if found is None:
            raise BftError(f"trainer {id_} ended some time ago: explain({id_!r}) has its last decisions")
        return found

    def explain(self, id_: str, limit: int = 50) -> Explanation:
        """Return one trainer and the last decisions about it; ApiError (404) if it is not known."""
        return read(Explanation, self._get(f"/v1/trainers/{quote(str(id_), safe='')}/explain?limit={limit}"))

    def explain_node(self, name: str) -> NodeExplanation:
        """Return why one node is or is not lent, and the decisions about it; ApiError (404) for an unknown node."""
        return read(NodeExplanation, self._get(f"/v1/nodes/{quote(name, safe='')}/explain"))

    def history(self, since: When | None = None, until: When | None = None, step_s: float | None = None) -> History:
        """Return nodes and trainers over time, averaged over `step_s`; omitted arguments take the daemon's defaults."""
        parameters = {"since": _seconds(since), "until": _seconds(until), "step": step_s}
        return read(History, self._get("/v1/history" + _query(parameters)))

    def usage(self, since: When | None = None, until: When | None = None, by: str | Sequence[str] = "user") -> Usage:
        """Return node-seconds by user, account or both: all for administrators, else the caller's own."""
        by = by if isinstance(by, str) else ",".join(by)
        parameters = {"since": _seconds(since), "until": _seconds(until), "by": by}
        return read(Usage, self._get("/v1/usage" + _query(parameters)))

    def events(self, after: int = 0, limit: int = 1000) -> Rows[Event]:
        """Return the ledger's events after rowid `after`, oldest first: all, or those of the caller's own trainers."""
        events = self._get(f"/v1/events?after={after}&limit={limit}").get("events")
        return Rows(read(Event, event) for event in events or ())

    def pause(
        self, why: str, *, nodes: Sequence[str] = (), user: str = "", account: str = "", release: bool = False
    ) -> Rows[Pause]:
        """Stop lending, to anybody, on some nodes, or to a user or account; returns all pauses.

        For administrators only.
        """
        reply = self._daemon.pause(_scope(nodes, user, account), why, release)
        return _pauses(reply)

    def resume(
        self, *, nodes: Sequence[str] = (), user: str = "", account: str = "", everything: bool = False
    ) -> Rows[Pause]:
        """Lift a pause, or all of them; returns the remaining pauses.

        For administrators only.
        """
        return _pauses(self._daemon.resume({"all": True} if everything else _scope(nodes, user, account)))

    def tune(self, **changes: Any) -> Mapping[str, Any]:
        """Change tunable keys, such as t_fwd_s=300.0; returns all tunable keys with their values.

        For administrators only.
        """
        return self._daemon.tune(**changes)

    def wait(
        self,
        trainer: str,
        until: Literal["finished"] | int = FINISHED,
        timeout_s: float | None = None,
        every_s: float = 2.0,
    ) -> Trainer:
        """Wait until a trainer has finished, or until at least so many nodes work for it; return it as it is then.

        If the daemon restarts meanwhile, waiting goes on. Raises TimedOut, ApiError (404) for an unknown trainer, and
        BftError if the trainer finished without ever having had the nodes.
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
        """Return a trainer as it is now; one that only the ledger remembers as finished, as its last decision says."""
        explanation = self.explain(id_, limit=20)
        if explanation.trainer is not None:
            return explanation.trainer
        codes = [each.decision.get("exit_code") for each in explanation.decisions if isinstance(each.decision, Mapping)]
        known = [code for code in codes if isinstance(code, int)]
        last = before.to_dict() if before is not None else {"id": id_}
        return read(Trainer, last | {"state": FINISHED, "working": 0, "exit_code": known[-1] if known else None})

    def _get(self, path: str) -> dict[str, Any]:
        return self._daemon.request("GET", path, timeout_s=self._timeout_s)


def _pauses(reply: Mapping[str, Any]) -> Rows[Pause]:
    return Rows(read(Pause, item) for item in reply.get("pauses") or ())


def _scope(nodes: Sequence[str], user: str, account: str) -> dict[str, Any]:
    """Return the scope of a pause in the form that the API expects; {} is everything."""
    if isinstance(nodes, str):
        raise UsageError(f"nodes must be a list of names, not {nodes!r}")
    named: dict[str, Any] = {"nodes": list(nodes), "user": user, "account": account}
    return {name: value for name, value in named.items() if value}


def _seconds(when: When | None) -> float | None:
    """Convert a time to unix seconds."""
    if isinstance(when, timedelta):
        return time.time() - when.total_seconds()
    return when.timestamp() if isinstance(when, datetime) else when


def _query(parameters: Mapping[str, Any]) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _is(seen: Trainer | None) -> str:
    return f"is {seen.state} on {counted(seen.working, 'node')}" if seen else "was not heard of"


def _exit(seen: Trainer) -> str:
    return "nobody knows how" if seen.exit_code is None else f"exit code {seen.exit_code}"
