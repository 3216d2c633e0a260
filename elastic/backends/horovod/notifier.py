"""Notification of Horovod workers of new hosts, without waiting for them.

Upstream waits for rank 0's answer without a limit, and holds the lock under which new workers are started. If rank 0 is
stopped, or its node dies silently, no other worker would ever be started again.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any


class WorkerNotifier:
    """One worker's notifications, in a thread of their own: the newest is sent once the previous one was answered."""

    def __init__(self, client: Any) -> None:
        """`client` is Horovod's client for this worker."""
        self._client = client
        self._lock = threading.Lock()
        self._newest: tuple[Any, Any] | None = None
        self._sending = False

    def notify_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        """Notify as upstream does, but return at once."""
        with self._lock:
            self._newest = timestamp, update_res
            if self._sending:
                return
            self._sending = True
        threading.Thread(target=self._send, name="bft-notify", daemon=True).start()

    def _send(self) -> None:
        while True:
            with self._lock:
                newest, self._newest = self._newest, None
                if newest is None:
                    self._sending = False
                    return
            # As upstream: a lost worker is noticed elsewhere, and one that missed this is notified again.
            with contextlib.suppress(Exception):
                self._client.notify_hosts_updated(*newest)
