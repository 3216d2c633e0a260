"""python -m elastic.node BACKEND LINK SCRIPT [ARG...]: see elastic.node, and AgentLink.opened for LINK."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from typing import Protocol

from elastic.backends import KINDS, load
from elastic.link.child_process import adopt_orphans, die_with_parent
from elastic.node import devices
from elastic.node.link import AgentLink


class BackendNode(Protocol):
    """A back-end's part on a node."""

    def run(self) -> None:
        """Serve until the agent goes away."""


def main() -> None:
    """Import what workers need, send `ready`, and serve the agent until it goes away."""
    die_with_parent()
    adopt_orphans()
    backend, where, *argv = sys.argv[1:]
    link = AgentLink.opened(where)
    os.environ.pop("PYTHONSAFEPATH", None)  # set for this process only: scripts expect their folder on sys.path
    # Slurm's notice reaches every process of the pilot. This one and its workers stay until the agent ends them.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    kind = KINDS[backend]
    # An import creates hundreds of thousands of lasting objects: searching them for garbage took a fifth of its time.
    gc.disable()
    try:
        load(kind.preload)()
        node: BackendNode = load(kind.node)(link, argv)
    except ImportError as error:
        # Another try would end the same way: the driver ends the trainer with this sentence.
        image = os.environ.get("BFT_CONTAINER")
        todo = "name an image that has it" if image else "install it for this Python, as the users' guide says"
        text = f"{f'container={image}: ' if image else ''}{sys.executable}: {error}; {todo}"
        # All nodes use the same image, but their own Pythons may differ.
        link.send({"op": "cannot", "text": text, **({"sure": True} if image else {})})
        raise SystemExit(1) from None
    if devices.count(os.environ) and (why := devices.unusable()):
        print(f"bft: {why}", file=sys.stderr, flush=True)
    # Imported objects are never garbage: the workers' collections leave them, and the shared memory, alone.
    gc.freeze()
    gc.enable()
    link.send({"op": "ready"})
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        node.run()
    os._exit(0)


if __name__ == "__main__":
    main()
