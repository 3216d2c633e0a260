"""The client of the API for commands, the demo and benchmarks: small, synchronous, and quick to import."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bftd import config_file
from bftd.base import old_names
from bftd.base.errors import ApiError, ConfigError, DaemonUnreachable
from bftd.protocol.address import DEFAULT_USER, endpoint, is_path, split_address
from bftd.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from bftd.credentials import proofs

SOCKET_VARIABLE = "BFTD_SOCKET"
MUNGE_SOCKET_VARIABLE = "BFTD_MUNGE_SOCKET"
TIMEOUT_S = 10.0
# The daemon may read the ledger for some seconds.
TRACE_TIMEOUT_S = 30.0


class ApiClient:
    """A client of one daemon, over a unix socket, over TCP with munge, or with the token of a private cluster.

    `tcp` is `[user@]host:port`, where `user` is the one the daemon runs as. Raises DaemonUnreachable if nobody answers,
    or something other than the daemon, and ApiError if the daemon refuses.
    """

    def __init__(
        self,
        socket_path: str = "",
        tcp: str = "",
        token: str = "",
        timeout_s: float = TIMEOUT_S,
        munge_socket: str = "",
    ) -> None:
        self._socket_path = socket_path
        self._tcp = tcp
        self._token = token
        self._timeout_s = timeout_s
        self._munge_socket = munge_socket

    @property
    def address(self) -> str:
        """The daemon's address, as drivers and $BFTD_SOCKET take it."""
        return self._socket_path or self._tcp

    @property
    def proof(self) -> str:
        """The proof that callers over TCP give of who they are: munge or token."""
        return "token" if self._token else "munge"

    def status(self, folded: bool = False) -> dict[str, Any]:
        """Return nodes, trainers, last decisions and accounting; `folded` asks for groups of nodes, if available."""
        path = "/v1/status?nodes=folded" if folded else "/v1/status"
        return old_names.status(self._asked(path, mode=str, trainers=list, decisions=list))

    def explain(self, trainer: str, limit: int = 50) -> dict[str, Any]:
        """Return one trainer and the sentences about it."""
        return self._asked(f"/v1/trainers/{quote(trainer, safe='')}/explain?limit={limit}", decisions=list)

    def explain_node(self, node: str, limit: int = 50) -> dict[str, Any]:
        """Return one node, its last leases and the sentences about it."""
        told = self._asked(f"/v1/nodes/{quote(node, safe='')}/explain?limit={limit}", decisions=list)
        return told | {"node": old_names.node(told["node"])} if told.get("node") else told

    def trainers(self, every: bool = False) -> dict[str, Any]:
        """Return the trainers, each with its last decision; `every` adds ended ones, as far back as the ledger goes."""
        return self._asked(f"/v1/trainers{'?all=1' if every else ''}", trainers=list)

    def change(self, trainer: str, **asked: Any) -> dict[str, Any]:
        """Change a trainer's `nodes_min` and `nodes_max`, or its `weight`; returns what it asks for by then."""
        return self._acted(f"/v1/trainers/{quote(trainer, safe='')}/change", asked, nodes_max=int)

    def tune(self, **changes: Any) -> dict[str, Any]:
        """Change tunable keys; returns all tunable keys."""
        settings: dict[str, Any] = self._acted("/v1/tune", changes, settings=dict)["settings"]
        return settings

    def pause(self, what: Mapping[str, Any], why: str, release: bool) -> dict[str, Any]:
        """Stop lending `what`: nodes, a user or an account; all if empty. Returns the pauses by then."""
        asked = {**what, "why": why, "release": release}
        return self._acted("/v1/pause", asked, text=str, asked_back=int, pauses=list)

    def resume(self, what: Mapping[str, Any]) -> dict[str, Any]:
        """Lift the pause of `what`; returns the remaining pauses."""
        return self._acted("/v1/resume", dict(what), text=str, pauses=list)

    def events(self, after: int = 0, limit: int = 1000, since_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the ledger's events with a rowid above `after`, and of `since_s` or later."""
        since = f"&since={since_s}" if since_s else ""
        told = self._asked(f"/v1/events?after={after}&limit={limit}{since}", events=list)
        events: list[dict[str, Any]] = told["events"]
        for event in events:
            number = event.get("rowid") if isinstance(event, dict) else None
            if not isinstance(number, int) or number <= after:  # whoever asks for all would ask for ever
                raise DaemonUnreachable(f"what answers at {self.address} is no bftd: it tells no events")
            after = number
        return events

    def reset(self, *names: str) -> dict[str, Any]:
        """Reset these keys, or all tunable ones, to the daemon's configuration; returns all tunable keys."""
        settings: dict[str, Any] = self._acted("/v1/tune", {"reset": list(names)}, settings=dict)["settings"]
        return settings

    def usage(self, since_s: float, until_s: float, by: Sequence[str] = ("user",)) -> dict[str, Any]:
        """Return the node-seconds of that time by user, account or both."""
        return self._asked(f"/v1/usage?since={since_s}&until={until_s}&by={','.join(by)}", usage=list)

    def history(
        self, since_s: float, until_s: float, step_s: float | None = None, *, trainers: bool = True
    ) -> dict[str, Any]:
        """Return nodes and trainers over that time, as means of steps; without `step_s` the daemon chooses a step."""
        step = "" if step_s is None else f"&step={step_s}"
        path = f"/v1/history?since={since_s}&until={until_s}{step}&trainers={int(trainers)}"
        return self._asked(path, points=list, windows=list)

    def pool_trace(self, since_s: float) -> dict[str, Any]:
        """Return the changes of the pool since a time, and the trainers of that time; for administrators."""
        path = f"/v1/pool-trace?since={since_s}"
        return self._fit(self.request("GET", path, timeout_s=TRACE_TIMEOUT_S), format=int, settings=dict)

    def _asked(self, path: str, **kinds: type) -> dict[str, Any]:
        return self._fit(self.request("GET", path), **kinds)

    def _acted(self, path: str, body: Any, **kinds: type) -> dict[str, Any]:
        return self._fit(self.request("POST", path, body), **kinds)

    def _fit(self, answer: dict[str, Any], **kinds: type) -> dict[str, Any]:
        """Return the answer if it has these fields, as every bftd's has; another server may also answer in JSON."""
        for name, kind in kinds.items():
            if not isinstance(answer.get(name), kind):
                raise DaemonUnreachable(f"what answers at {self.address} is no bftd: it tells no {name}")
        return answer

    def request(self, method: str, path: str, body: Any = None, timeout_s: float | None = None) -> dict[str, Any]:
        """Send one request and return the decoded answer."""
        connection, caller = self._connection(self._timeout_s if timeout_s is None else timeout_s)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        sent = b"" if body is None else json.dumps(body).encode()
        nonce = ""
        try:
            connection.connect()
            if caller is not None:
                address = endpoint(connection.sock.getpeername())
                nonce, proof = caller.request(address, method, path, sent)
                headers |= proof
            connection.request(method, path, sent or None, headers)
            response = connection.getresponse()
            status, content = response.status, response.read()
        except ProtocolError as error:
            raise ConfigError(str(error)) from None
        except TimeoutError:
            raise DaemonUnreachable(f"the daemon at {self.address} does not answer: see its log") from None
        except (OSError, http.client.HTTPException) as error:
            raise DaemonUnreachable(self._not_running(error)) from None
        finally:
            connection.close()
        if caller is not None:
            try:
                caller.check(nonce, status, content, response.getheader(caller.answer_header))
            except ProtocolError as error:
                raise self._impostor(error, content) from None
        return self._decoded(status, content)

    def _connection(self, timeout_s: float) -> tuple[http.client.HTTPConnection, proofs.CallerCredential | None]:
        """Return an unopened connection, and the Caller that proves requests and answers, None if not needed."""
        if self._socket_path:
            return _UnixConnection(self._socket_path, timeout_s), None
        try:
            from bftd.credentials import proofs  # a caller on the daemon's own host need not wait for it to load

            user, host, port = split_address(self._tcp)
            caller = None if self._token else proofs.CallerCredential(user, self._munge_socket)
        except (ValueError, ProtocolError) as error:
            raise ConfigError(str(error)) from None
        return http.client.HTTPConnection(host, port, timeout=timeout_s), caller

    def _impostor(self, error: ProtocolError, content: bytes) -> DaemonUnreachable:
        from bftd.credentials import proofs

        try:
            reply = json.loads(content)
        except ValueError:
            reply = None
        return DaemonUnreachable(f"what answers at {self.address} is not believed: {error}{proofs.unproved(reply)}")

    def _decoded(self, status: int, content: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise DaemonUnreachable(f"what answers at {self.address} is no bftd")
        if status >= 400:
            raise ApiError(str(answer.get("error", f"HTTP status {status}")), status)
        return answer

    def _not_running(self, error: Exception) -> str:
        if isinstance(error, PermissionError):
            return f"no permission to reach the daemon at {self.address}"
        return (
            f"no daemon answers at {self.address}: start bftd, or say where it is with --config, "
            f"${config_file.PATH_VARIABLE} or ${SOCKET_VARIABLE}"
        )


def find(path: str | None = None) -> ApiClient:
    """Return the client for the daemon of this host.

    $BFTD_SOCKET names it, by the path of its socket or as [user@]host:port; else the configuration does (`path`,
    $BFTD_CONFIG, /etc/bftd/bftd.toml): the socket if it exists, else the TCP address. Without any file the default
    socket is tried.
    """
    given = os.environ.get(SOCKET_VARIABLE, "")
    if given:
        if is_path(given):
            return ApiClient(given)
        return ApiClient(tcp=given, munge_socket=os.environ.get(MUNGE_SOCKET_VARIABLE, ""))
    settings = config_file.load_found(path)
    if not settings.api.tcp or Path(settings.api.socket).exists():
        return ApiClient(settings.api.socket)
    if settings.api.auth == "token":
        try:
            token = Path(settings.api.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"cannot read [api] token_file {settings.api.token_file}: {error.strerror}") from None
        return ApiClient(tcp=settings.api.tcp, token=token)
    user = settings.daemon.user
    where = settings.api.tcp if user == DEFAULT_USER else f"{user}@{settings.api.tcp}"
    return ApiClient(tcp=where, munge_socket=settings.api.munge_socket)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except BaseException:
            self.sock.close()
            raise
