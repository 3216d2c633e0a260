"""python -m elastic.node BACKEND LINK SCRIPT [ARG...]: see elastic.node, and AgentLink.opened for LINK."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from typing import Protocol

from elastic.backends import KINDS, load
from elastic.link.child import adopt_orphans, die_with_parent
from elastic.node import devices
from elastic.node.link import AgentLink


class Node(Protocol):
    """What a back-end runs on a node."""

    def run(self) -> None:
        """Serves until the agent goes away."""


def main() -> None:
    """Imports what workers need, says `ready`, and serves the agent until it goes away."""
    die_with_parent()
    adopt_orphans()
    backend, where, *argv = sys.argv[1:]
    link = AgentLink.opened(where)
    os.environ.pop("PYTHONSAFEPATH", None)  # meant for this process: scripts expect their folder on sys.path
    # Slurm's notice reaches every process of the pilot. This one and its workers stay until the agent ends them.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    kind = KINDS[backend]
    # An import makes hundreds of thousands of objects that stay: to look for garbage among them took a fifth of it.
    gc.disable()
    try:
        load(kind.preload)()
        node: Node = load(kind.node)(link, argv)
    except ImportError as error:
        # A try again would end the same way: the driver ends the trainer with this sentence.
        image = os.environ.get("BFT_CONTAINER")
        todo = "name an image that has it" if image else "install it for this Python, as the users' guide says"
        text = f"{f'container={image}: ' if image else ''}{sys.executable}: {error}; {todo}"
        # One image is the same on all nodes, their own Pythons need not be.
        link.send({"op": "cannot", "text": text, **({"sure": True} if image else {})})
        raise SystemExit(1) from None
    if devices.count(os.environ) and (why := devices.unusable()):
        print(f"bft: {why}", file=sys.stderr, flush=True)
    # What is imported is never garbage: the workers' collections leave it, and so the memory that they share, alone.
    gc.freeze()
    gc.enable()
    link.send({"op": "ready"})
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        node.run()
    os._exit(0)


if __name__ == "__main__":
    main()
