"""Today's commands against a daemon of before: what it answered was recorded.

`assets/daemon-answers-1.jsonl` has the answers of bftd 0.1.0 of November 2026 (a sandbox cluster of four nodes, a
trainer on three of them), also those to questions that it did not know.
"""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.messages import wording
from tests.support.terminal import Terminal
from tests.support.waiting import STILL_S

RECORDED = Path(__file__).parent / "assets" / "daemon-answers-1.jsonl"


class Replayed(BaseHTTPRequestHandler):
    """Answers as it is recorded, by the path alone where the query is another."""

    def do_GET(self) -> None:
        """Answer."""
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        known = [json.loads(line) for line in RECORDED.read_text().splitlines()]
        fits = [item for item in known if (item["method"], item["path"]) == (self.command, self.path)]
        path = urlsplit(self.path).path
        fits += [item for item in known if (item["method"], urlsplit(item["path"]).path) == (self.command, path)]
        found = next((item for item in fits if item["body"] == body), fits[0])
        answer = json.dumps(found["answer"]).encode()
        self.send_response(found["status"])
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def address_string(self) -> str:
        """Nobody has an address on a unix socket."""
        return "here"


ITS_WORDS = "its speed is not known yet"  # the older daemon sent them


@pytest.fixture(autouse=True)
def old_daemon(tmp_path: Path) -> Iterator[None]:
    """Listens where the commands look."""
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "socket"), Replayed) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield
        server.shutdown()
        thread.join()


def test_an_older_daemon_is_understood_as_far_as_it_tells(bft: Terminal) -> None:
    for words in (
        ["status"],
        ["status", "--json"],
        ["status", "--check"],
        ["explain", "1"],
        ["explain", "1", "--json"],
        ["usage", "--since", "2026-11-23"],
        ["usage", "--since", "2026-11-23", "--json"],
        ["pause", "--why", "power test"],
        ["unpause"],
    ):
        ran = bft(*words)
        assert (ran.code, ran.err) == (0, ""), words
        assert ran.out
        if "--json" in words:
            assert next(iter(json.loads(ran.out).items())) == ("format", 1)
    shown = bft("status").out.splitlines()
    assert "n[1-3]  1            working" in shown
    told = json.loads(bft("status", "--json").out)
    assert told["earmarks"] == told["rooms"], "by their old name"
    assert told["earmark_usage"]["wasted"] == told["room_usage"]["in_vain"]
    assert (
        bft("explain", "1")
        .out.splitlines()[0]
        .endswith(wording("core.sentences.starts", count="3 nodes", nodes="n[1-3]", rate=ITS_WORDS))
    )


def test_trainers_of_an_older_daemon_are_those_of_its_status(bft: Terminal) -> None:
    ran = bft("trainers")
    header, row = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    shown = dict(zip(header.split(), row.split(), strict=True))
    assert (shown["ID"], shown["USER"], shown["STATE"], shown["NODES"]) == ("1", "root", "running", "3")
    assert (shown["TIME"], shown["ENDS"], shown["REASON"]) == ("-", "-", "-")
    assert bft("trainers", "--all").err == (wording("cli.trainers.older_daemon") + "\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["n1"],
            wording("cli.explain.trainer_unknown_to_older", name="n1", older="")
            + wording("cli.explain.older_daemon_explains_no_nodes"),
        ),
        (["--node", "n1"], wording("cli.explain.older_daemon_explains_no_nodes")),
    ],
)
def test_a_question_that_an_older_daemon_does_not_know_ends_in_one_line(
    bft: Terminal, words: list[str], told: str
) -> None:
    assert bft("explain", *words) == (1, "", f"bft: {told}\n")


def test_regression_the_live_view_printed_nothing_into_a_pipe(tmp_path: Path) -> None:
    """It prints one picture after the other, and ends with its reader."""
    with subprocess.Popen(
        [sys.executable, "-m", "bftd.cli.main", "status", "--watch"],
        env={**os.environ, "BFTD_SOCKET": str(tmp_path / "socket"), "PYTHONUNBUFFERED": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        silent = threading.Timer(STILL_S, process.kill)
        silent.start()
        pictures = sum(process.stdout.readline().startswith("bftd ") for _ in range(30))
        silent.cancel()
        process.stdout.close()
        told = process.stderr.read()
        assert (process.wait(STILL_S), told) == (0, "")
    assert pictures > 1


def test_an_older_daemon_is_examined_as_far_as_it_tells(bft: Terminal) -> None:
    found = {check["name"]: check["level"] for check in json.loads(bft("doctor", "--json").out)["checks"]}
    assert found["daemon"] == "ok"
    assert found["daemon's clock"] == "failure", "it answered long ago"
    assert {found["daemon's state"], found["your limits"]} <= {"ok", "warning", "failure"}
