"""python -m elastic.backends.horovod.life MIN MAX: one life of Horovod's ElasticDriver, beside the driver.

A child process of its own, because `get_results` may never return and anybody may connect to Horovod's rendezvous.
Commands come on standard input (hosts, exit), requests go to standard output (start, kill, done); the driver carries
them out through the agents, so there is no ssh. A host's name is `LEASE.INCARNATION`: a name is blacklisted for ever
after a crash and need not resolve.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from typing import Any

import horovod.runner.elastic.driver as upstream
from horovod.runner.elastic.discovery import HostDiscovery
from horovod.runner.elastic.worker import HostUpdateResult
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from horovod.runner.http.http_server import RendezvousHTTPServer, RendezvousServer

from elastic.backends.horovod.announcement import KEY_NAME, handler_for
from elastic.backends.horovod.notifier import Notifier
from elastic.link.child import die_with_parent
from elastic.link.seal import new_secret
from elastic.link.wire import Message, decode, encode
from elastic.timing import GLOO_TIMEOUT_S

_DISCOVERY_S = 0.05
"""How often Horovod looks at the host list; it is in memory here."""

_RECONCILE_S = 1.0
"""A notification that arrives during a reset is lost, so wanted and current hosts are compared again and again."""

_KILL_AFTER_S = 1.0
"""A removed worker that has not left by then waits in a collective that will not come."""


_BACKLOG = 4096
"""Connections that may wait for the rendezvous; the kernel cuts it to its own limit (net.core.somaxconn)."""


class _Hosts(HostDiscovery):  # type: ignore[misc]
    """The hosts that the driver wants, as Horovod's discovery."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return dict(self.slots)


class _Driver(upstream.ElasticDriver):  # type: ignore[misc]
    """Horovod's driver, told every change as "mixed".

    After a removal-only update the survivors skip the next synchronization; if an addition follows, the newcomer waits
    in it alone, for ever (horovod issue 3494).
    """

    def _notify_workers_host_changes(self, current_hosts: Any, update_res: Any) -> None:
        if current_hosts.count_available_slots() >= self._min_num_proc:
            super()._notify_workers_host_changes(current_hosts, HostUpdateResult.mixed)

    def register_worker_server(self, host: str, slot: int, addresses: Any, secret_key: Any) -> None:
        super().register_worker_server(host, slot, addresses, secret_key)
        self._worker_clients[host, slot] = Notifier(self._worker_clients[host, slot])

    def reconcile(self) -> None:
        while not self._shutdown.wait(_RECONCILE_S):
            with self._wait_hosts_cond:
                self._notify_workers_host_changes(self._host_manager.current_hosts, HostUpdateResult.mixed)


class _Worker:
    """A worker that runs somewhere, as Horovod's driver sees it: something that ends with a code."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.rc = 1


class Life:
    """Couples Horovod's driver to the pipe."""

    def __init__(self, nodes_min_slots: int, slots_max: int, out: Any) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._min = nodes_min_slots
        self._hosts = _Hosts()
        self._guests: set[str] = set()
        self._workers: dict[tuple[str, int], _Worker] = {}
        rendezvous = RendezvousServer(0)
        self._driver = _Driver(rendezvous, self._hosts, nodes_min_slots, slots_max, timeout=3600)
        key = new_secret()
        port = rendezvous.start(handler_for(self._driver, key, self._guests))
        self._env = {key: str(value) for key, value in create_run_env_vars("", [""], port, elastic=True).items()}
        self._env[KEY_NAME] = key
        # The way is each node's own matter: its agent knows by which interface and address it reaches the driver.
        for name in ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_RENDEZVOUS_ADDR"):
            self._env.pop(name, None)
        self._env["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(GLOO_TIMEOUT_S)

    def start(self) -> None:
        """Runs Horovod's driver in the background."""
        threading.Thread(target=self._driver.reconcile, daemon=True).start()
        threading.Thread(target=self._run, daemon=True).start()

    def command(self, message: Message) -> None:
        """Carries out one command of the driver."""
        if message["op"] == "hosts":
            self._guests.update(message["addresses"])
            self._hosts.slots = dict(message["hosts"])
        elif message["op"] == "exit":
            with self._lock:
                worker = self._workers.get((message["host"], message["local_rank"]))
            if worker is not None:
                worker.rc = int(message["rc"])
                worker.ended.set()

    def _run(self) -> None:
        try:
            self._driver.start(self._min, self._create_worker)
            results = self._driver.get_results()
            codes = [code for code, _ in results.worker_results.values()]
            error = results.error_message
        except Exception as failure:
            # Whatever Horovod raises here ends this life, not the trainer: the driver starts another one.
            codes, error = [], str(failure)
        self._send({"op": "done", "ok": not error and 0 in codes, "error": error or "", "codes": codes})

    def _create_worker(self, slot: Any, events: list[threading.Event]) -> tuple[int, float]:
        worker = _Worker()
        with self._lock:
            self._workers[slot.hostname, slot.local_rank] = worker
        self._send(
            {
                "op": "start",
                "host": slot.hostname,
                "local_rank": slot.local_rank,
                "env": {**self._env, **create_slot_env_vars(slot)},
            }
        )
        asked_s: float | None = None
        while not worker.ended.wait(0.02):
            if any(event.is_set() for event in events):
                asked_s = asked_s or time.monotonic()
                if time.monotonic() - asked_s > _KILL_AFTER_S:
                    self._send({"op": "kill", "host": slot.hostname})
                    asked_s = float("inf")
        return worker.rc, time.time()

    def _send(self, message: Message) -> None:
        with self._lock:
            self._out.write(encode(message))
            self._out.flush()


def mend_upstream() -> None:
    """Changes what Horovod fixes at import time: its looks at the hosts, its clock and its server's backlog."""
    upstream.DISCOVER_HOSTS_FREQUENCY_SECS = _DISCOVERY_S
    # Every rank asks for every other one's address at once. A backlog of 5, Python's default, drops connections, and
    # the kernel tries again after one, three and seven seconds: eight ranks took 5 s to come together.
    RendezvousHTTPServer.request_queue_size = _BACKLOG
    # Upstream's stamps are whole seconds: the second of two changes within one would be taken for the first.
    upstream._epoch_time_s = time.time


def main() -> None:
    """Serves until standard input ends."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Standard output is the protocol; what libraries print must not get into it.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    logging.basicConfig(
        level=os.environ.get("BFT_HOROVOD_LOG", "WARNING"), stream=sys.stderr, format="horovod: %(message)s"
    )
    mend_upstream()
    life: Life | None = None
    for line in sys.stdin.buffer:
        message = decode(line)
        if life is None:
            life = Life(int(sys.argv[1]), int(sys.argv[2]), out)
            life.command(message)
            life.start()
        else:
            life.command(message)
    os._exit(0)


if __name__ == "__main__":
    main()
