"""The live workers of each pilot, indexed both ways: with a thousand of them a search would take time."""

from __future__ import annotations

from elastic.driver.pilots.launcher import Pilot

Worker = tuple[str, int]
"""A host's name and a local rank."""


class Alive:
    """The workers that were started and have not ended; a pilot may have some under an old host name too."""

    def __init__(self) -> None:
        self._pilots: dict[str, Pilot] = {}
        self._ranks: dict[str, set[int]] = {}
        self._hosts: dict[Pilot, set[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def __contains__(self, worker: Worker) -> bool:
        host, local_rank = worker
        return local_rank in self._ranks.get(host, ())

    @property
    def pilots(self) -> list[Pilot]:
        """The pilots with workers, in the order of their first one."""
        return list(self._hosts)

    def hosts(self) -> dict[str, Pilot]:
        """Return the hosts with workers, and their pilots."""
        return dict(self._pilots)

    def on(self, pilot: Pilot) -> list[Worker]:
        """Return the workers on a pilot."""
        return [(host, rank) for host in self._hosts.get(pilot, ()) for rank in sorted(self._ranks[host])]

    def pilot_of(self, host: str) -> Pilot | None:
        """Return the pilot of this host's workers; None if it has none."""
        return self._pilots.get(host)

    def add(self, worker: Worker, pilot: Pilot) -> None:
        """Note a start."""
        host, local_rank = worker
        self._pilots[host] = pilot
        self._ranks.setdefault(host, set()).add(local_rank)
        self._hosts.setdefault(pilot, set()).add(host)

    def remove(self, worker: Worker) -> None:
        """Note an end; nothing happens if the worker has ended before."""
        host, local_rank = worker
        ranks = self._ranks.get(host)
        if ranks is None:
            return
        ranks.discard(local_rank)
        if ranks:
            return
        del self._ranks[host]
        pilot = self._pilots.pop(host)
        self._hosts[pilot].discard(host)
        if not self._hosts[pilot]:
            del self._hosts[pilot]

    def clear(self) -> None:
        """Forget all workers."""
        self._pilots.clear()
        self._ranks.clear()
        self._hosts.clear()
