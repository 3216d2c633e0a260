"""A small synchronous client of the daemon's API, for commands, the demo and benchmarks."""

from __future__ import annotations

import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bftd import config
from bftd.errors import ApiError, ConfigError, DaemonUnreachable

SOCKET_VARIABLE = "BFTD_SOCKET"
TIMEOUT_S = 10.0


class Client:
    """Talks to one daemon over a unix socket, or over TCP with a token.

    Raises DaemonUnreachable when nobody answers and ApiError when the daemon refuses.
    """

    def __init__(self, socket_path: str = "", tcp: str = "", token: str = "", timeout_s: float = TIMEOUT_S) -> None:
        self._socket_path = socket_path
        self._tcp = tcp
        self._token = token
        self._timeout_s = timeout_s

    @property
    def address(self) -> str:
        """Where the daemon is looked for."""
        return self._socket_path or self._tcp

    def status(self) -> dict[str, Any]:
        """Nodes, trainers, last decisions and accounting."""
        return self.request("GET", "/v1/status")

    def explain(self, trainer: str, limit: int = 50) -> dict[str, Any]:
        """One trainer and the sentences about it."""
        return self.request("GET", f"/v1/trainers/{quote(trainer, safe='')}/explain?limit={limit}")

    def tune(self, **changes: Any) -> dict[str, Any]:
        """Change t_fwd_s, objective or pj_max; returns the settings."""
        settings: dict[str, Any] = self.request("POST", "/v1/tune", changes)["settings"]
        return settings

    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """The ledger's events with a rowid above `after`."""
        events: list[dict[str, Any]] = self.request("GET", f"/v1/events?after={after}&limit={limit}")["events"]
        return events

    def request(self, method: str, path: str, body: Any = None, timeout_s: float | None = None) -> dict[str, Any]:
        """One request; returns the decoded answer."""
        connection = self._connect(self._timeout_s if timeout_s is None else timeout_s)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            status, content = response.status, response.read()
        except TimeoutError:
            raise DaemonUnreachable(f"the daemon at {self.address} does not answer: see its log") from None
        except (OSError, http.client.HTTPException) as error:
            raise DaemonUnreachable(self._not_running(error)) from None
        finally:
            connection.close()
        return self._decoded(status, content)

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._socket_path:
            return _UnixConnection(self._socket_path, timeout_s)
        host, _, port = self._tcp.rpartition(":")
        if not port.isdecimal():
            raise ConfigError(f"[api] tcp must be host:port, not {self._tcp!r}")
        return http.client.HTTPConnection(host.strip("[]") or "localhost", int(port), timeout=timeout_s)

    def _decoded(self, status: int, content: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(content)
        except ValueError:
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
            f"${config.PATH_VARIABLE} or ${SOCKET_VARIABLE}"
        )


def find(path: str | None = None) -> Client:
    """The client for the daemon of this host.

    $BFTD_SOCKET names its socket; else the configuration does (`path`, $BFTD_CONFIG, /etc/bftd/bftd.toml): the socket
    if it is there, else the TCP address. Without any file the default socket is tried.
    """
    if os.environ.get(SOCKET_VARIABLE):
        return Client(os.environ[SOCKET_VARIABLE])
    settings = config.load_found(path)
    if settings.api.tcp and not Path(settings.api.socket).exists():
        try:
            token = Path(settings.api.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"cannot read [api] token_file {settings.api.token_file}: {error.strerror}") from None
        return Client(tcp=settings.api.tcp, token=token)
    return Client(settings.api.socket)


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
