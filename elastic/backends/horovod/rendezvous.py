"""Horovod's rendezvous server, for the trainer's own nodes only, and fast enough for hundreds of ranks.

In each of gloo's three contexts every rank asks for every other one's address twice, over a new connection each time:
with n ranks more than 2 n (n - 1) requests, all at once. Upstream starts a thread for each, which parses it with the
parser for mail. Here the accepting thread answers them itself, and leaves requests that may wait to other threads.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterable
from typing import Any

from horovod.runner.elastic.rendezvous import GET_RANK_AND_SIZE, PUT_WORKER_ADDRESSES, create_rendezvous_handler
from horovod.runner.http import http_server as upstream

from elastic.backends.horovod.notification_address import notification_key, read_announcement

_MAX_BYTES = 1 << 20
"""The longest value that the rendezvous takes; workers' own are some hundred bytes."""

_BACKLOG = 4096
"""Connections that may wait for the rendezvous; the kernel cuts it to its own limit (net.core.somaxconn)."""

_WITHIN_S = 3
"""The time that the kernel holds back a connection that has not asked anything."""

_QUESTION_BYTES = 4096
_ACCEPTED_AT_ONCE = 256
_NOT_FOUND = b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class AllowedAddresses:
    """The addresses that may use the rendezvous at all; any thread may read them."""

    def __init__(self) -> None:
        self._addresses: frozenset[str] = frozenset()

    def replace(self, addresses: Iterable[str]) -> None:
        """Admit these and no others: a concurrent reader sees the old list or the new one, never a part."""
        self._addresses = frozenset(addresses)

    def __contains__(self, address: object) -> bool:
        return address in self._addresses


def handler_for(driver: Any, key: str, guests: AllowedAddresses) -> type[Any]:
    """Return Horovod's rendezvous without its unpickling, as the handler class that its server wants."""
    original: type[Any] = create_rendezvous_handler(driver)

    class Handler(original):  # type: ignore[misc]
        def handle(self) -> None:
            if self.client_address[0] in guests:
                super().handle()

        @staticmethod
        def quick_answer(server: Any, address: str, question: bytes) -> bytes | None:
            """Return the answer to a whole request that needs no waiting; None for any other, b"" for a stranger."""
            if address not in guests:
                return b""
            words = question.split(b" ", 2)
            if words[0] != b"GET" or len(words) < 3 or not question.endswith(b"\r\n\r\n"):
                return None
            _, _, scope_and_name = words[1].partition(b"/")
            scope, slash, name = scope_and_name.decode("latin-1").partition("/")
            if not slash or "/" in name:
                return _NOT_FOUND
            if scope == GET_RANK_AND_SIZE:
                return None
            with server.cache_lock:
                value: bytes | None = server.cache.get(scope, {}).get(name)
            if value is None:
                return _NOT_FOUND
            return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(value) + value

        def do_PUT(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > _MAX_BYTES:
                self.close_connection = True
                self.send_status_code(413)
                return
            super().do_PUT()

        def _put_value(self, scope: str, name: str, value: bytes) -> None:
            if scope != PUT_WORKER_ADDRESSES:
                super()._put_value(scope, name, value)
                return
            try:
                addresses = read_announcement(key, name, value)
                host, _, local_rank = name.rpartition(":")
                rank = int(local_rank)
            except ValueError:
                return  # from a stranger
            self._put_worker_addresses(host, rank, addresses, notification_key(key, name))

    return Handler


class QuickServer(upstream.RendezvousHTTPServer):  # type: ignore[misc]
    """A server that answers requests without waiting in the accepting thread; see the module's docstring."""

    # A backlog of 5, Python's default, drops connections, and the kernel tries again after one, three and seven
    # seconds: eight ranks took 5 s to come together.
    request_queue_size = _BACKLOG
    daemon_threads = True

    def server_activate(self) -> None:
        # A connection arrives with its request, so that the accepting thread never waits for one.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _WITHIN_S)
        super().server_activate()
        self.socket.setblocking(False)

    def _handle_request_noblock(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = self.socket.accept()
            except OSError:
                return
            if not self._answered(sock, address[0]):
                sock.setblocking(True)
                self.process_request(sock, address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Upstream prints every odd request into the user's log.
        logging.info("a question of %s was not answered", client_address, exc_info=True)

    def _answered(self, sock: socket.socket, address: str) -> bool:
        try:
            sock.setblocking(False)
            # Peeked at: if it is not answered here, another thread reads it.
            answer = self.RequestHandlerClass.quick_answer(self, address, sock.recv(_QUESTION_BYTES, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        except OSError:
            answer = b""
        if answer is None:
            return False
        rest = b""
        with contextlib.suppress(OSError):
            if answer:
                # Unread bytes would reset the connection before the answer arrives.
                sock.recv(_QUESTION_BYTES)
                rest = answer[sock.send(answer) :]
        if rest:
            # Gloo's addresses grow with the number of ranks, beyond what a connection takes at once.
            threading.Thread(target=self._send_rest, args=(sock, rest), daemon=True).start()
        else:
            self.shutdown_request(sock)
        return True

    def _send_rest(self, sock: socket.socket, rest: bytes) -> None:
        with contextlib.suppress(OSError):
            sock.settimeout(_WITHIN_S)
            sock.sendall(rest)
        self.shutdown_request(sock)


class Rendezvous(upstream.RendezvousServer):  # type: ignore[misc]
    """Horovod's rendezvous server in a thread of its own, on a port that the kernel chooses."""

    def start(self, handler: type[Any]) -> int:
        """Start to serve; returns the port."""
        self._httpd = QuickServer(("", 0), handler, self._verbose)
        self._listen_thread = threading.Thread(target=self._httpd.serve_forever, daemon=True)
        self._listen_thread.start()
        return int(self._httpd.server_address[1])
