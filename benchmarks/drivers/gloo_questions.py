"""Gloo's questions to Horovod's rendezvous as so many ranks find each other, and the time of the answers.

In gloo's global context every rank tells its addresses, about 140 bytes for each other rank, and asks twice for those
of every other one. The local and cross contexts are smaller, or as large where every node has one rank.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable
from typing import Any

_ADDRESS_BYTES = 140
_CLIENTS = 4
"""Processes that ask, each for its share of the ranks."""


def measure(ranks: int) -> dict[str, float]:
    """All questions of one context: seconds in all, and what one costs the server."""
    questions = 2 * ranks * (ranks - 1)
    port_in, port_out = os.pipe()
    stop_in, stop_out = os.pipe()
    used_in, used_out = os.pipe()
    server = _fork(lambda: _serve(ranks, port_out, stop_in, used_out))
    port = int(os.read(port_in, 16))
    began_s = time.perf_counter()
    clients = [_fork(lambda first=first: _ask(port, ranks, first)) for first in range(_CLIENTS)]  # type: ignore[misc]
    codes = [os.waitpid(client, 0)[1] for client in clients]
    took_s = time.perf_counter() - began_s
    os.write(stop_out, b".")
    used_s = float(os.read(used_in, 32))
    os.waitpid(server, 0)
    for pipe in (port_in, port_out, stop_in, stop_out, used_in, used_out):
        os.close(pipe)
    if any(codes):
        raise SystemExit(f"drivers.gloo_questions: {ranks} ranks were not all answered")
    return {"questions": questions, "in s": took_s, "server us each": used_s / questions * 1e6}


def _fork(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    return pid


def _serve(ranks: int, port_out: int, stop_in: int, used_out: int) -> None:
    from elastic.backends.horovod.rendezvous import AllowedAddresses, Rendezvous, handler_for

    guests, driver = AllowedAddresses(), object()
    guests.replace(["127.0.0.1"])
    rendezvous: Any = Rendezvous(0)
    port = rendezvous.start(handler_for(driver, "", guests))
    rendezvous.init([])
    rendezvous._httpd.cache["global_"] = {str(rank): b"a" * (_ADDRESS_BYTES * ranks) for rank in range(ranks)}
    os.write(port_out, str(port).encode())
    before = resource.getrusage(resource.RUSAGE_SELF)
    os.read(stop_in, 1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    os.write(used_out, f"{after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime:.6f}".encode())


def _ask(port: int, ranks: int, first: int) -> None:
    buffer = bytearray(1 << 18)
    for rank in range(first, ranks, _CLIENTS):
        for other in range(ranks):
            for _ in range(2 if other != rank else 0):
                with socket.create_connection(("127.0.0.1", port), 60) as sock:
                    sock.sendall(b"GET /global_/%d HTTP/1.1\r\nHost: rendezvous\r\n\r\n" % other)
                    length = 0
                    while count := sock.recv_into(buffer):
                        length += count
                    assert length > _ADDRESS_BYTES * ranks
