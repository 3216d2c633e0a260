"""The announcement of a Horovod worker's address to Horovod's driver, for notifications: signed, and without a pickle.

Upstream puts the worker's address and a fresh key, pickled and in the clear, on a server that anyone can write to and
read from: a stranger's pickle would run in the driver, and a stranger who has read a key could run one in the worker.
Here both ends have a key of this run from the trainer's driver, so the address is JSON under an HMAC, and the key with
which Horovod signs its notifications is derived and not sent.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import MutableMapping
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from horovod.runner.elastic.rendezvous import PUT_WORKER_ADDRESSES
from horovod.runner.elastic.worker import WorkerNotificationManager, WorkerNotificationService

KEY_NAME = "BFT_RUN_KEY"

_ANNOUNCE_S = 30.0

Addresses = dict[str, list[tuple[str, int]]]

_own_key: str | None = None
"""The key of this worker, or of the workers that are forked from this process; None outside bftd."""


def keep_key(environ: MutableMapping[str, str]) -> None:
    """Remove the key from a worker's future environment: scripts log theirs, and pass it to their children."""
    global _own_key
    _own_key = environ.pop(KEY_NAME, None)


def notification_key(key: str, worker: str) -> bytes:
    """Return the key that signs Horovod's notifications of one worker ("HOST:LOCAL_RANK")."""
    return _mac(key, "notifications", worker.encode())


def announcement(key: str, worker: str, addresses: Addresses) -> bytes:
    """Return a worker's addresses, signed."""
    text = json.dumps(addresses).encode()
    return _sign(key, worker, text) + b" " + text


def read_announcement(key: str, worker: str, data: bytes) -> Addresses:
    """Return the addresses in an announcement; raises ValueError if it is not this worker's."""
    tag, _, text = data.partition(b" ")
    if not hmac.compare_digest(tag, _sign(key, worker, text)):
        raise ValueError(f"an announcement that is not of worker {worker[:80]!r}")
    return {name: [(str(host), int(port)) for host, port in found] for name, found in json.loads(text).items()}


def mend_worker() -> None:
    """Make workers of bftd announce themselves this way; a script that runs without bftd does as upstream."""
    original = WorkerNotificationManager.init
    if getattr(original, "_bft_signed", False):
        return

    def init(self: WorkerNotificationManager, *args: Any, **kwargs: Any) -> None:
        key = _own_key
        if key is None or args or kwargs:
            original(self, *args, **kwargs)
            return
        with self._lock:
            if self._service is None:
                self._service = _announced(self, key)

    init._bft_signed = True  # type: ignore[attr-defined]
    WorkerNotificationManager.init = init


def _announced(manager: Any, key: str) -> Any:
    environ = os.environ
    worker = f"{environ['HOROVOD_HOSTNAME']}:{environ['HOROVOD_LOCAL_RANK']}"
    signing = notification_key(key, worker)
    service = WorkerNotificationService(signing, environ.get("HOROVOD_GLOO_IFACE"), manager)
    server = f"{environ['HOROVOD_GLOO_RENDEZVOUS_ADDR']}:{environ['HOROVOD_GLOO_RENDEZVOUS_PORT']}"
    data = announcement(key, worker, service.addresses())
    request = Request(f"http://{server}/{PUT_WORKER_ADDRESSES}/{worker}", data=data, method="PUT")
    # Never by the proxy in a site's environment: that is for the outside, and the rendezvous would not accept it.
    with build_opener(ProxyHandler({})).open(request, timeout=_ANNOUNCE_S):
        return service


def _sign(key: str, worker: str, text: bytes) -> bytes:
    return _mac(key, "announcement", worker.encode() + b"\0" + text).hex().encode()


def _mac(key: str, purpose: str, text: bytes) -> bytes:
    return hmac.digest(key.encode(), purpose.encode() + b"\0" + text, "sha256")
