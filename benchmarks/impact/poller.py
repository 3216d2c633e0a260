"""`python -m benchmarks.impact.poller SLURM_CONF`: reads snapshots as the daemon does, until SIGTERM.

What it costs a controller to be looked at is no part of what harvesting costs it, so runs without bftd have it too.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from pathlib import Path

from bftd.daemon import next_delay_s
from bftd.keys import SlurmConfig
from slurm_plugin.client import SlurmClient
from slurm_plugin.errors import SlurmError


def main() -> None:
    """Polls until it is told to stop."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    settings = SlurmConfig()
    client = SlurmClient(Path(sys.argv[1]), settings.timeout_s)
    while not stop.is_set():
        begun = time.monotonic()
        with contextlib.suppress(SlurmError):
            client.snapshot()
        took_s = time.monotonic() - begun
        stop.wait(max(0.0, next_delay_s(settings.poll_s, client.waited_s, 0) - took_s))


if __name__ == "__main__":
    main()
