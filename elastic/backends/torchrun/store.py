"""python -m elastic.backends.torchrun.store: torchrun's store, beside the driver: no pool node can take it along.

Reads `open` lines on standard input and answers each with the port of a fresh store: an old generation's keys cannot
meddle with a new one's.
"""

from __future__ import annotations

import signal
import sys
from datetime import timedelta

from elastic.link.child import die_with_parent
from elastic.link.wire import decode, encode


def main() -> None:
    """Serves until standard input ends."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    except ImportError:
        # The driver says it in one line.
        raise SystemExit(1) from None

    stores: list[TCPStore] = []
    sys.stdout.buffer.write(encode({"op": "ready"}))
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        generation = decode(line)["generation"]
        store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
        # The one before may still have clients that are being stopped.
        stores = [*stores[-1:], store]
        sys.stdout.buffer.write(encode({"op": "opened", "generation": generation, "port": store.port}))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
