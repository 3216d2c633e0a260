"""What answers in the daemon's place may say anything: a driver takes it for no answer, and training goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from bftd.protocol.registration import Registration
from bftd.protocol.sizes import Sizes
from elastic.driver import daemon_link as daemons
from elastic.driver import transport
from elastic.driver.daemon_link import DaemonLink
from tests.elastic.fakes import until

pytestmark = pytest.mark.slow

REGISTRATION = Registration("7", "test", "torchrun", Sizes(1, 4))


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def said(value: object, status: str = "200 OK") -> bytes:
    return answer(json.dumps(value).encode(), status, "Content-Type: application/json")


WELCOME = {"protocol": 2, "epoch": 1, "poll_s": 1, "version": 0, "min_window_s": 1, "leases": []}
LEASE = {"id": "n1.1", "node": "n1", "state": "granted", "vacate": False, "limit_s": 60}

BAD = {
    "nothing at all": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n" * 100,
    "bytes": bytes(range(256)) * 40,
    "half an answer": answer(b"{}")[:-1],
    "a proxy's page": answer(b"<html>Sign in</html>", "200 OK", "Content-Type: text/html"),
    "a gateway's page": answer(b"<html>Bad gateway</html>", "502 Bad Gateway"),
    "a way to another page": answer(b"{}", "302 Found", "Location: http://127.0.0.1:9/login"),
    "a way without end": answer(b"", "301 Moved", "Location: /v1/trainers"),
    "a list": said([1, 2]),
    "no fields": said({"hello": 1}),
    "no text": answer(b"\xff\xfe\xfa"),
    "deep": answer(b"[" * 100_000),
    "a number of a million digits": answer(b'{"epoch": ' + b"9" * 1_000_000 + b"}"),
    "larger than any of the daemon's": said({**WELCOME, "more": "x" * (1 << 21)}),
    "compressed, it says": answer(b"nonsense", "200 OK", "Content-Encoding: gzip"),
    "an epoch that is a text": said({**WELCOME, "epoch": "one"}),
    "leases that are none": said({**WELCOME, "leases": {"n1": 1}}),
    "a lease without a node": said({**WELCOME, "leases": [{**LEASE, "node": None}]}),
    "a lease with a limit that is no number": said({**WELCOME, "leases": [{**LEASE, "limit_s": "long"}]}),
    "an error that is none": said({"error": {"deep": [1]}}, "500 Oops"),
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 100_000 + b"\r\n",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
async def test_regression_a_bad_answer_ended_the_trainer_now_the_daemon_does_not_answer(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, bad: bytes
) -> None:
    monkeypatch.setattr(daemons, "DAEMON_RETRY_S", 0.01)
    monkeypatch.setattr(transport, "_ANSWER_BYTES", 1 << 20)
    path = tmp_path_factory.mktemp("b") / "s"
    lines, taken, asked = list[str](), list[object](), list[bytes]()
    says = bad

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(says)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, path)
    link = DaemonLink(str(path), lambda: REGISTRATION, taken.append, lambda: None, lines.append)
    running = asyncio.create_task(link.run())
    await until("asked again and again", lambda: len(asked) >= 4)
    assert not running.done()
    assert taken == []
    assert len(lines) <= 2, "it is said once, not at every try"
    assert all(len(line) < 2500 and "\n" not in line for line in lines)
    says = said(WELCOME)
    await until("registered", lambda: taken)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    server.close()
    assert lines, "the user is told"
    assert not any(b"/login" in request for request in asked)
    assert Path(path).parent.exists()
