"""python -m elastic.node BACKEND FD SCRIPT [ARG...]: see elastic.node."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Protocol

from elastic.link.child import die_with_parent
from elastic.node.link import AgentLink


class Node(Protocol):
    """What a back-end runs on a node."""

    def run(self) -> None:
        """Serves until the agent goes away."""


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
        node = _preloaded(backend, link, argv)
    except ImportError as error:
        # A try again would end the same way: the driver ends the trainer with this sentence.
        text = f"{sys.executable}: {error}; install it for this Python, as the users' guide says"
        link.send({"op": "cannot", "text": text})
        raise SystemExit(1) from None
    link.send({"op": "ready"})
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        node.run()
    os._exit(0)


def _preloaded(backend: str, link: AgentLink, argv: list[str]) -> Node:
    """The back-end's node, with all that its workers need imported."""
    if backend == "horovod":
        from elastic.backends.horovod import node as horovod

        horovod.preload()
        return horovod.HorovodNode(link, argv)
    from elastic.backends.torchrun import node as torchrun

    torchrun.preload()
    return torchrun.TorchrunNode(link, argv)


if __name__ == "__main__":
    main()
