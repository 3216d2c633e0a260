"""python -m elastic.backends.horovod.elastic_run: one run of Horovod's ElasticDriver, beside the driver.

It is a child process because `get_results` may never return and anybody may connect to Horovod's rendezvous. Commands
come on standard input (begin, guests, hosts, exit), requests go to standard output (formed, start, kill, done); the
driver carries them out through the agents, so there is no ssh. A host's name is `LEASE.INCARNATION`: Horovod blacklists
a name forever after a crash, and a name need not resolve. `begin` gives the most ranks there may be, for gloo's
time-out.

Nothing here polls for events that can be reported, since with hundreds of workers that alone fills a core.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import horovod.runner.elastic.driver as upstream
from horovod.runner.elastic.discovery import HostDiscovery
from horovod.runner.elastic.worker import HostUpdateResult
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars

from elastic.backends.horovod.notification_address import KEY_NAME
from elastic.backends.horovod.notifier import WorkerNotifier
from elastic.backends.horovod.rendezvous import AllowedAddresses, Rendezvous, handler_for
from elastic.backends.horovod.rounds import Rounds
from elastic.base.timing import GLOO_TIMEOUT_S
from elastic.link.authentication import new_secret
from elastic.link.child_process import die_with_parent
from elastic.link.wire import Message, decode, encode

_RECONCILE_S = 1.0
"""A notification that arrives during a reset is lost, so wanted and current hosts are compared repeatedly."""

_KILL_AFTER_S = 1.0
"""A worker that has not left this long after Horovod gave it up waits in a collective that will not come."""

_SLOTS_S = 60.0
"""The driver lists enough hosts or ends this run at once; if neither happens, a new run mends it."""

_RANKS_SQUARED_A_S = 2500
"""The pairs of ranks that find each other in a second, with a wide margin: measured are four to ten times as many."""


class _Hosts(HostDiscovery):  # type: ignore[misc]
    """The hosts that the driver wants, as Horovod's discovery."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return dict(self.slots)


class _Driver(upstream.ElasticDriver):  # type: ignore[misc]
    """Horovod's driver, led by the list of hosts alone; `on_given_up` gets the hosts whose workers have to end.

    Every change is reported as "mixed": after a removal-only update the survivors skip the next synchronization; if an
    addition follows, the new worker waits in it alone, forever (horovod issue 3494).

    Upstream fixes the least and the largest number of slots at the start. Here the least number comes with each list,
    as nodes may be unequal, and there is no largest: the list is what the driver wants.
    """

    def __init__(
        self,
        rendezvous: Any,
        hosts: _Hosts,
        on_given_up: Callable[[str | None], None],
        on_formed: Callable[[list[str]], None],
    ) -> None:
        self._hosts = hosts
        self._on_formed = on_formed
        self._least = 0
        self._listed = threading.Event()
        self._on_given_up = on_given_up
        super().__init__(rendezvous, hosts, 0, None, timeout=_SLOTS_S)
        self._worker_registry = Rounds(self, self._host_manager)
        # Both the driver and its registry of workers give up hosts through this object.
        original = self._host_manager.blacklist

        def blacklist(host: str) -> None:
            original(host)
            on_given_up(host)

        self._host_manager.blacklist = blacklist

    def list_hosts(self, slots: dict[str, int], least: int) -> None:
        """Make these the wanted hosts; with fewer than `least` slots no group of workers is formed."""
        with self._wait_hosts_cond:
            self._hosts.slots, self._least = slots, least
            self._host_manager.update_available_hosts()
            self._wait_hosts_cond.notify_all()
        self._listed.set()

    def wait_for_available_slots(self, min_num_proc: int, min_hosts: int = 1) -> Any:
        """Wait as upstream does, but for the demand of the current list instead of an earlier one."""
        deadline_s = time.monotonic() + self._timeout
        with self._wait_hosts_cond:
            while not self._enough(self._host_manager.current_hosts):
                left_s = deadline_s - time.monotonic()
                if self._shutdown.is_set() or left_s <= 0:
                    raise RuntimeError(f"Horovod's driver was left with fewer than {self._least} slots")
                self._wait_hosts_cond.wait(left_s)
            return self._host_manager.current_hosts

    def stop(self, error_message: str | None = None) -> None:
        self._shutdown.set()
        self._listed.set()
        super().stop(error_message)
        self._on_given_up(None)

    def _discover_hosts(self) -> None:
        """Notify workers of a new list; upstream polls for one instead, and loses notifications during a reset."""
        while not self._shutdown.is_set():
            self._listed.wait(_RECONCILE_S)
            self._listed.clear()
            self._notify_workers_host_changes(self._host_manager.current_hosts, HostUpdateResult.mixed)

    def _update_host_assignments(self, current_hosts: Any) -> Any:
        """Assign as upstream does for each new group of workers; report its hosts before its workers are started."""
        pending = super()._update_host_assignments(current_hosts)
        self._on_formed(list(self._host_assignments))
        return pending

    def _notify_workers_host_changes(self, current_hosts: Any, update_res: Any) -> None:
        if self._enough(current_hosts):
            super()._notify_workers_host_changes(current_hosts, HostUpdateResult.mixed)

    def register_worker_server(self, host: str, slot: int, addresses: Any, secret_key: Any) -> None:
        super().register_worker_server(host, slot, addresses, secret_key)
        self._worker_clients[host, slot] = WorkerNotifier(self._worker_clients[host, slot])

    def _enough(self, current_hosts: Any) -> bool:
        return bool(current_hosts.host_assignment_order) and current_hosts.count_available_slots() >= self._least


class _Worker:
    """A worker on some node, as Horovod's driver sees it: it ends with a code."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.rc = 1


class ElasticRun:
    """The coupling of Horovod's driver to the pipe."""

    def __init__(self, ranks: int, out: Any) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._guests = AllowedAddresses()
        self._workers: dict[tuple[str, int], _Worker] = {}
        rendezvous = Rendezvous(0)
        self._driver = _Driver(rendezvous, _Hosts(), self._given_up, self._formed)
        key = new_secret()
        port = rendezvous.start(handler_for(self._driver, key, self._guests))
        run_env = {name: str(value) for name, value in create_run_env_vars("", [""], port, elastic=True).items()}
        # Each node has its own way here: its agent knows the interface and address by which it reaches the driver.
        for name in ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_RENDEZVOUS_ADDR"):
            run_env.pop(name, None)
        self._env = {**run_env, KEY_NAME: key}
        self._defaults = {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(gloo_timeout_s(ranks))}

    def start(self) -> None:
        """Run Horovod's driver in the background."""
        threading.Thread(target=self._run, daemon=True).start()

    def command(self, message: Message) -> None:
        """Carry out one command of the driver."""
        if message["op"] == "guests":
            self._guests.replace(message["addresses"])
        elif message["op"] == "hosts":
            self._driver.list_hosts(dict(message["hosts"]), int(message["least"]))
        elif message["op"] == "exit":
            with self._lock:
                worker = self._workers.get((message["host"], message["local_rank"]))
            if worker is not None:
                worker.rc = int(message["rc"])
                worker.ended.set()

    def _run(self) -> None:
        try:
            self._driver.start(0, self._create_worker)
            results = self._driver.get_results()
            codes = [code for code, _ in results.worker_results.values()]
            error = results.error_message
        except Exception as failure:
            # Any error of Horovod ends this run, but not the trainer: the driver starts another one.
            codes, error = [], str(failure)
        self._send({"op": "done", "ok": not error and 0 in codes, "error": error or "", "codes": codes})

    def _create_worker(self, slot: Any, events: list[threading.Event]) -> tuple[int, float]:
        """Start a worker and wait for its end, in a thread of its own."""
        key, worker = (slot.hostname, slot.local_rank), _Worker()
        with self._lock:
            self._workers[key] = worker
        env = {**self._env, **create_slot_env_vars(slot)}
        self._send({"op": "start", "host": key[0], "local_rank": key[1], "env": env, "defaults": self._defaults})
        if any(event.is_set() for event in events):
            self._given_up(slot.hostname)
        worker.ended.wait()
        with self._lock:
            self._workers.pop(key, None)
        return worker.rc, time.time()

    def _formed(self, hosts: list[str]) -> None:
        self._send({"op": "formed", "hosts": hosts})

    def _given_up(self, host: str | None) -> None:
        """Have the workers of a host, or all, killed in a moment, unless they have ended by then."""
        killing = threading.Timer(_KILL_AFTER_S, self._kill, (host,))
        killing.daemon = True
        killing.start()

    def _kill(self, host: str | None) -> None:
        with self._lock:
            hosts = dict.fromkeys(name for name, _ in self._workers if host in (name, None))
        for name in hosts:
            self._send({"op": "kill", "host": name})

    def _send(self, message: Message) -> None:
        with self._lock:
            self._out.write(encode(message))
            self._out.flush()


def gloo_timeout_s(ranks: int) -> int:
    """Return the seconds that gloo may wait for another rank: ranks of a large group find each other one by one."""
    return max(GLOO_TIMEOUT_S, math.ceil(ranks * ranks / _RANKS_SQUARED_A_S))


def mend_upstream() -> None:
    """Change what Horovod fixes at import time."""
    # Upstream's stamps are whole seconds: two changes within one second would look like one.
    upstream._epoch_time_s = time.time


def main() -> None:
    """Serve until standard input ends."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Standard output carries the protocol; output of libraries must not get into it.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    logging.basicConfig(
        level=os.environ.get("BFT_HOROVOD_LOG", "WARNING"), stream=sys.stderr, format="horovod: %(message)s"
    )
    mend_upstream()
    run: ElasticRun | None = None
    for line in sys.stdin.buffer:
        message = decode(line)
        if run is None:
            run = ElasticRun(int(message["ranks"]), out)
            run.start()
        else:
            run.command(message)
    os._exit(0)


if __name__ == "__main__":
    main()
