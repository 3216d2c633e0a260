"""`python -m benchmarks.impact.poller SLURM_CONF [FILE]`: reads snapshots as the daemon does, until SIGTERM.

What it costs a controller to be looked at is no part of what harvesting costs it, so runs without bftd have it too. The
snapshots are written to FILE, compressed with xz.
"""

from __future__ import annotations

import lzma
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.backfill import snapshot_log
from bftd.config.keys import SlurmConfig
from bftd.daemon.process import next_delay_s
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SlurmError


def main() -> None:
    """Polls until it is told to stop."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    settings = SlurmConfig()
    client = SlurmClient(Path(sys.argv[1]), settings.timeout_s)
    with ExitStack() as files:
        record = None
        if len(sys.argv) > 2:
            # Most lines are alike: more effort would save little and take seconds of a core in each run.
            file = files.enter_context(lzma.open(sys.argv[2], "wt", preset=1))
            record = snapshot_log.Writer(file, {})
        while not stop.is_set():
            begun = time.monotonic()
            with suppress(SlurmError):
                snapshot = client.snapshot()
                if record is not None:
                    record.add(snapshot)
            took_s = time.monotonic() - begun
            stop.wait(max(0.0, next_delay_s(settings.poll_s, client.waited_s, 0) - took_s))


if __name__ == "__main__":
    main()
