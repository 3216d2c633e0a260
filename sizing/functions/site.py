"""A centre: its Slurm, its GPUs, and the folder of the files in which it describes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from sizing.files.text import text_of
from sizing.inventory.file import parse
from sizing.inventory.gpus import GpuType
from sizing.inventory.inventory import Inventory, from_slurm, with_idle
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SlurmError

CORRECTIONS = "gpus.json"
"""The file of corrections in the centre's folder."""

InventorySource = Inventory | str | os.PathLike[str]
"""An inventory, or the name of its file ("-" is standard input)."""


@dataclass(frozen=True)
class Site:
    """A centre. `folder` has its files: of GPUs (gpus.json), of communication tables and of jobs that ran.

    `slurm` makes a client of its Slurm, and is called only when Slurm is asked; by default the commands on PATH are
    used. `without` gives the partitions that no regular job asks for.
    """

    folder: Path = Path("/etc/bftd")
    slurm: Callable[[], SlurmClient] = SlurmClient
    without: Callable[[], Collection[str]] = tuple

    def inventory(self, given: InventorySource | None = None, *, option: str = "--inventory") -> Inventory:
        """Return the `given` inventory or that in the file so named, or else the one that Slurm shows.

        If the site has a file of corrections with partitions, the file says which GPUs exist and Slurm which are idle;
        if Slurm does not answer, the file alone counts. A file without partitions only describes the types of GPUs. If
        Slurm does not answer and no file lists partitions, SlurmError names `option`, which takes a file.
        """
        if isinstance(given, Inventory):
            return given
        if given is not None:
            return in_file(os.fspath(given))
        client = self.slurm()
        own = self._corrections()
        try:
            nodes = client.nodes_with_gpus_used()
            if own is not None and own.offers:
                return with_idle(own, nodes)
            return from_slurm(nodes, client.partitions(), without=self.without(), types=own.types if own else None)
        except SlurmError as error:
            if own is not None and own.offers:
                return own
            raise SlurmError(f"{error}; without Slurm, name a file of GPUs with {option}") from None

    def types(self) -> dict[str, GpuType]:
        """Return the site's descriptions of its GPUs, from its file of corrections, by each name that it gives them."""
        own = self._corrections()
        return {name: known for known in own.types.values() for name in (known.name, *known.names)} if own else {}

    def _corrections(self) -> Inventory | None:
        path = self.folder / CORRECTIONS
        return in_file(str(path)) if path.exists() else None


HERE = Site()
"""The centre of this machine: the Slurm commands on PATH, and the files in /etc/bftd."""


def in_file(path: str) -> Inventory:
    """Return the inventory in a file; "-" is standard input. Raises UsageError."""
    return parse(text_of(path), name="standard input" if path == "-" else path)
