"""The GPU inventory of `bft size`: from Slurm, a file, or one corrected by the other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bftd.base.errors import UsageError
from bftd.cli import common
from bftd.config import configuration
from slurm_plugin.errors import SlurmError

if TYPE_CHECKING:
    from sizing.inventory.gpus import GpuType
    from sizing.inventory.inventory import Inventory

CORRECTIONS = "gpus.json"
"""The file of corrections, next to the configuration in use: /etc/bftd/gpus.json."""

_MOST_BYTES = 16 * 2**20
"""The limit for a file of GPUs or plans.

The file for ten thousand nodes, each a group of its own, takes a quarter of it.
"""


def found(path: str | None = None, config_path: str | None = None, *, option: str = "--inventory") -> Inventory:
    """Return the inventory in the file at `path`, or else Slurm's, without bftd's own partitions.

    If the site has a file of corrections with partitions, the file says which GPUs exist and Slurm which are idle; if
    Slurm does not answer, the file alone counts. A file without partitions only describes the types of GPUs. If Slurm
    does not answer and no file lists partitions, SlurmError names `option`, with which the command takes a file.
    """
    from sizing.inventory.inventory import from_slurm, with_idle

    if path is not None:
        return in_file(path)
    settings = configuration.load_found(config_path)
    corrections = configuration.find(config_path).with_name(CORRECTIONS)
    own = in_file(str(corrections)) if corrections.exists() else None
    client = common.slurm_client(settings)
    try:
        nodes = client.nodes_with_gpus_used()
        if own is not None and own.offers:
            return with_idle(own, nodes)
        bftds = {*settings.slurm.harvested, settings.slurm.driver_partition}
        return from_slurm(nodes, client.partitions(), without=bftds, types=own.types if own else None)
    except SlurmError as error:
        if own is not None and own.offers:
            return own
        raise SlurmError(f"{error}; without Slurm, name a file of GPUs with {option}") from None


def own_types(config_path: str | None = None) -> dict[str, GpuType]:
    """Return the site's descriptions of its GPUs, from its file of corrections, by each name that it gives them."""
    corrections = configuration.find(config_path).with_name(CORRECTIONS)
    types = in_file(str(corrections)).types.values() if corrections.exists() else ()
    return {name: known for known in types for name in (known.name, *known.names)}


def in_file(path: str) -> Inventory:
    """Return the inventory in a file; "-" is standard input."""
    from sizing.inventory.file import parse

    return parse(text_of(path), name="standard input" if path == "-" else path)


def text_of(path: str) -> str:
    """Return the text of a file, or of standard input for "-"; raises UsageError."""
    where = "standard input" if path == "-" else path
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise UsageError(f"{where} has more than {_MOST_BYTES >> 20} MiB: no file of GPUs or plans is so large")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {where}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
