"""python -m elastic.node BACKEND FD SCRIPT [ARG...]: see elastic.node."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from elastic.child import die_with_parent
from elastic.node.link import AgentLink


def main() -> None:
    """Imports torch, says `ready`, and serves the agent until it goes away."""
    die_with_parent()
    os.environ.pop("PYTHONSAFEPATH", None)  # meant for this process: scripts expect their folder on sys.path
    # Slurm's notice reaches every process of the pilot. This one and its workers stay until the agent ends them.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    backend, fd, *argv = sys.argv[1:]
    link = AgentLink(int(fd))
    try:
        if backend == "horovod":
            from elastic.node import horovod as module
        else:
            from elastic.node import torchrun as module  # type: ignore[no-redef]
        module.preload()
    except ImportError as error:
        # A try again would end the same way: the driver ends the trainer with this sentence.
        link.send(
            {"op": "cannot", "text": f"{sys.executable}: {error}; install it there, e.g. pip install bftd[{backend}]"}
        )
        raise SystemExit(1) from None
    link.send({"op": "ready"})
    node = module.HorovodNode(link, argv) if backend == "horovod" else module.TorchrunNode(link, argv)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        node.run()
    os._exit(0)


if __name__ == "__main__":
    main()
