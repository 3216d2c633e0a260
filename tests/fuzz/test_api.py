"""Requests to the API with faults in path, query, headers and body: answered with a line, and never by a failure.

After each request the daemon looks at the nodes and plans: what was accepted must not break what comes later.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bftd.http.auth.caller import Caller, Callers
from bftd.http.rate_limit import Budgets
from bftd.http.routes import ROUTES
from bftd.ledger.reader import LedgerReader
from tests.bftd.http.test_api import TRAINER, Served, serving
from tests.fuzz.mutations import WORDS, contents, documents, few, refused
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "bftd/http/assets/driver-protocol-1.jsonl").read_text().splitlines()
]
BODIES = [
    *(item["body"] for item in RECORDED),
    TRAINER,
    TRAINER | {"curve": [[1, 10.0], [2, 18.0]], "sizes": [1, 2], "weight": 2.0, "gpu": "a100", "gpus": 1, "mix": True},
    TRAINER | {"held": [{"id": "n1.1", "node": "n1", "job_id": "7"}], "exit_code": 3, "reason": "it cannot begin"},
    {"nodes_min": 1, "nodes_max": 2, "weight": 3.0},
    {"nodes": ["n1", "n2"], "why": "a fan is broken", "release": True},
    {"user": "root", "why": "over quota"},
    {"account": "physics", "why": "over quota"},
    {"all": True},
    {"t_fwd_s": 60.0, "objective": "throughput", "pj_max": 5},
    {"reset": ["t_fwd_s"]},
    {"epoch": 1, "exit_code": 0, "reason": "", "summary": {"first_loss": 1.5, "last_loss": 0.5}},
    {
        "epoch": 1,
        "tail": ["a line", "another"],
        "events": [
            {"op": "progress", "at_s": 1.7e9, "step": 7, "samples": 70, "samples_per_s": 9.5, "nodes": 1, "loss": 0.25,
             "world_size": 1, "steps_lost": 0, "window_s": 2.0, "total_steps": 100, "saved_step": 5},
            {"op": "note", "at_s": 1.7e9, "text": "hello"},
            {"op": "suspend", "at_s": 1.7e9, "step": 7},
            {"op": "resume", "at_s": 1.7e9, "step": 7},
            {"op": "curve", "at_s": 1.7e9, "estimates": [{"class": "", "points": [[1, 10.0]], "origin": "measured"}]},
            {"op": "resize", "at_s": 1.7e9, "from_nodes": 1, "to_nodes": 2, "kind": "up", "stall_s": 2.0,
             "steps_lost": 0, "save_s": 1.0, "load_s": 0.5, "rendezvous_s": 0.5},
        ],
    },
]  # fmt: skip
KEYS = ("limit", "after", "since", "until", "step", "by", "trainers", "nodes", "all", "hours", "epoch", "version", "x")
HEADERS = ("Content-Type", "Accept", "Accept-Encoding", "Authorization", "Host", "Origin", "Content-Encoding", "X-A")
CALLERS = (Caller("root", True, 0), Caller("ann", False, 4242), Caller("eve", False, 4243))


class Daemon:
    """A served API in a thread of its own, and the caller that it takes everybody for."""

    def __init__(self, folder: Path) -> None:
        self.caller = CALLERS[0]
        self.failures: list[str] = []
        self.served: Served
        self._path = folder / "socket"
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve(ready)))
        self._thread.start()
        assert ready.wait(STILL_S)

    async def _serve(self, ready: threading.Event) -> None:
        async with serving(self._folder) as self.served:
            ready.set()
            await self._over.wait()

    def within(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(STILL_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(STILL_S)

    def says(self, sent: bytes, *, whole: bool = True) -> bytes:
        """What comes back for these bytes; after a request that is not whole, nothing more is sent."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(STILL_S)
            sock.connect(str(self._path))
            try:
                sock.sendall(sent)
                if not whole:
                    sock.shutdown(socket.SHUT_WR)
                got = b""
                while piece := sock.recv(1 << 16):
                    got += piece
            except ConnectionError:
                return b""
            return got

    def ask(self, method: str, target: str, body: bytes = b"", *headers: str) -> tuple[int, bytes]:
        """One request, as text; the status, 0 if there was no answer, and the body of the answer."""
        lines = [
            f"{method} {target} HTTP/1.1",
            "Host: a",
            "Connection: close",
            f"Content-Length: {len(body)}",
            *headers,
            "",
            "",
        ]
        head, _, content = self.says("\r\n".join(lines).encode(errors="surrogatepass") + body).partition(b"\r\n\r\n")
        return int(head.split()[1]) if head else 0, content

    def looks(self) -> None:
        """Two polls, each with a plan."""

        async def work() -> None:
            self.served.see("n1", "n2", "n3")

        self.within(work)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Budgets, "spend", lambda *_: True)
        made = Daemon(tmp_path_factory.mktemp("api"))
        patched.setattr(Callers, "known", lambda *_: made.caller)
        made.looks()
        assert made.ask("POST", "/v1/trainers", json.dumps(TRAINER).encode())[0] == 200
        try:
            yield made
        finally:
            made.close()


def is_answer(daemon: Daemon, caller: Caller, method: str, target: str, body: bytes, *headers: str) -> None:
    daemon.caller = caller
    with refused():
        status, content = daemon.ask(method, target, body, *headers)
    assert status != 500, content
    if status >= 400 and method != "HEAD" and target.startswith("/v1"):
        said = json.loads(content)["error"] if content.startswith(b"{") else ""
        assert len(said.splitlines()) <= 1
    if status == 200 and method == "POST":
        daemon.looks()
        daemon.caller = CALLERS[0]
        for path in ("/v1/status", "/v1/trainers?all=1", "/", "/metrics"):
            assert daemon.ask("GET", path)[0] == 200, path


WORD = st.sampled_from([word for word in WORDS if len(word) < 4000]) | st.text(max_size=6)
PLACES = st.sampled_from(["run-here-1", "n1", "1", "7"]) | WORD
POSTS = sorted({route.path for route in ROUTES if route.method == "POST"})
GETS = sorted({route.path for route in ROUTES if route.method == "GET"})


def targets(paths: list[str]) -> st.SearchStrategy[str]:
    def put(path: str, place: str, query: dict[str, str]) -> str:
        def escaped(text: str) -> str:
            return quote(text.encode(errors="surrogatepass"), safe="")

        asked = "&".join(f"{escaped(key)}={escaped(value)}" for key, value in query.items())
        filled = path.replace("{id}", escaped(place)).replace("{name}", escaped(place))
        return f"{filled}?{asked}" if query else filled

    queries = st.dictionaries(st.sampled_from(KEYS) | WORD, WORD, max_size=3)
    return st.builds(put, st.sampled_from(paths), PLACES, queries)


@few(2)
@given(st.sampled_from(CALLERS), targets(POSTS), documents(BODIES))
@example(CALLERS[0], "/v1/pause", json.dumps({"nodes": ["n["], "why": "x"}))
@example(CALLERS[0], "/v1/pause", json.dumps({"account": "\ud800", "why": "\ud800"}))
def test_a_body_with_faults_is_taken_or_refused_and_planning_goes_on(
    daemon: Daemon, caller: Caller, target: str, body: str
) -> None:
    is_answer(daemon, caller, "POST", target, body.encode(errors="surrogatepass"))


@few(2)
@given(st.sampled_from(CALLERS), targets(GETS))
@example(CALLERS[1], "/v1/trainers/%ED%A0%80/explain")
@example(CALLERS[0], "/v1/nodes/%FF%FE/explain?limit=%00")
def test_any_place_and_any_query_is_answered(daemon: Daemon, caller: Caller, target: str) -> None:
    is_answer(daemon, caller, "GET", target.replace("wait_s", "x"), b"")


@few(4)
@given(st.dictionaries(st.sampled_from(HEADERS), st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"))))
@example({"Content-Type": "application/json; charset=punycode"})
@example({"Content-Type": "application/json; charset=idna"})
@example({"Content-Type": "application/json; charset=zlib"})
@example({"Content-Type": "application/json; charset=undefined"})
@example({"Content-Encoding": "gzip"})
@example({"Accept-Encoding": "gzip;q=\xff"})
def test_odd_headers_are_answered(daemon: Daemon, headers: dict[str, str]) -> None:
    body = json.dumps({"x": "a-" * 100_000}).encode()
    lines = [f"{name}: {value}" for name, value in headers.items()]
    is_answer(daemon, CALLERS[0], "POST", "/v1/tune", body, *lines)
    is_answer(daemon, CALLERS[0], "GET", "/", b"", *lines)


RAW = b"POST /v1/tune HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"POST /v1/tune HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"


@few(2)
@given(contents([RAW, CHUNKED, RAW + RAW, b"GET / HTTP/1.0\r\n\r\n"]))
def test_torn_requests_end_their_own_connection_alone(daemon: Daemon, sent: bytes) -> None:
    with refused():
        assert not daemon.says(sent, whole=False).startswith(b"HTTP/1.1 500")
    assert daemon.ask("GET", "/v1/events?limit=1")[0] == 200


def test_the_ledger_of_all_these_requests_can_be_read(daemon: Daemon) -> None:
    events = LedgerReader(daemon.served.service.ledger.path).events(0, 10_000)
    json.dumps(events, allow_nan=False)
