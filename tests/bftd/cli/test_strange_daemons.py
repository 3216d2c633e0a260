"""The commands where something else than a bftd answers: each says so in a line."""

from __future__ import annotations

import os
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from bftd.api_client import ApiClient
from bftd.base.errors import BftError, DaemonUnreachable
from tests.support.messages import pattern, wording
from tests.support.programs import run_bft

ANSWERS = {
    "nothing in it": b"{}",
    "other kinds": b'{"mode": 1, "trainers": "x", "decisions": null, "events": {}, "usage": 0, "settings": []}',
    "too deep to read": b"[" * 100_000,
}
# What the commands ask; each used to end in a traceback.
ASKED = {
    "status": lambda daemon: daemon.status(),
    "trainers": lambda daemon: daemon.trainers(every=True),
    "explain": lambda daemon: daemon.explain("1"),
    "explain --node": lambda daemon: daemon.explain_node("n1"),
    "usage": lambda daemon: daemon.usage(0.0, 1.0),
    "history": lambda daemon: daemon.history(0.0, 1.0),
    "history --events": lambda daemon: daemon.events(),
    "tune": lambda daemon: daemon.tune(t_fwd_s=1.0),
    "tune --reset": lambda daemon: daemon.reset(),
    "tune --effect": lambda daemon: daemon.pool_trace(0.0),
    "pause": lambda daemon: daemon.pause({}, "why", False),
    "resume": lambda daemon: daemon.resume({}),
}


class Stranger(BaseHTTPRequestHandler):
    """Answers all questions alike."""

    answer = b""

    def do_GET(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def address_string(self) -> str:
        """Nobody has an address on a unix socket."""
        return "here"


@pytest.fixture(scope="module", params=ANSWERS)
def stranger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The path of its socket."""
    path = tmp_path_factory.mktemp("stranger") / "socket"
    handler = type("Answering", (Stranger,), {"answer": ANSWERS[request.param]})
    with socketserver.ThreadingUnixStreamServer(str(path), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield path
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("what", ASKED)
def test_regression_json_of_something_else_ended_commands_in_a_traceback(stranger: Path, what: str) -> None:
    with pytest.raises(DaemonUnreachable, match="^" + pattern("http.client.not_bftd", address=stranger)) as raised:
        ASKED[what](ApiClient(str(stranger)))
    assert isinstance(raised.value, BftError)
    assert "\n" not in str(raised.value)


def test_a_command_says_so_in_a_line(stranger: Path) -> None:
    done = run_bft("trainers", env={**os.environ, "BFTD_SOCKET": str(stranger)})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("bft: " + wording("http.client.not_bftd", address=stranger))
    assert done.stderr.count("\n") == 1


def test_regression_the_same_events_again_were_asked_for_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"events": [{"rowid": 3, "at_s": 1.0}, {"rowid": 4, "at_s": 2.0}]}
    monkeypatch.setattr(ApiClient, "request", lambda *_: told)
    assert ApiClient("/s").events(2) == told["events"]
    with pytest.raises(DaemonUnreachable, match="^" + pattern("http.client.not_bftd", address="/s")):
        ApiClient("/s").events(4)
