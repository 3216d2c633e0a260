"""The nodes' half: says what it was started with."""

from __future__ import annotations

import os
from collections.abc import Sequence

from elastic.node.link import AgentLink


def preload() -> None:
    """Nothing: there is nothing to import."""


class DummyNode:
    """Trains for as long as it takes to say so."""

    def __init__(self, link: AgentLink, argv: Sequence[str]) -> None:
        self._link = link
        self._argv = argv

    def run(self) -> None:
        while (message := self._link.poll(None)) is not None:
            if message["op"] == "group":
                seen = {name: os.environ.get(name) for name in ("DUMMY_IFACE", "DUMMY_LEVEL", "HOROVOD_LOG_LEVEL")}
                self._link.send({"op": "done", "text": f"{self._argv} {seen}"})
