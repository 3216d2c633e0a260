"""Where `bft size` finds what GPUs there are: live Slurm, a file, or the one with the other's corrections."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bftd import config
from bftd.cli import common
from bftd.errors import UsageError
from slurm_plugin.errors import SlurmError

if TYPE_CHECKING:
    from sizing.gpus import GpuType
    from sizing.inventory import Inventory

CORRECTIONS = "gpus.json"
"""The file of corrections, beside the configuration that counts here: /etc/bftd/gpus.json."""

_MOST_BYTES = 16 * 2**20
"""Of a file of GPUs or plans: those of ten thousand nodes, each a group of its own, have a quarter of that."""


def found(path: str | None = None, config_path: str | None = None, *, option: str = "--inventory") -> Inventory:
    """What a file says where one is named, and else what Slurm shows, less bftd's own partitions.

    Where the site has a file of corrections, it says what there is and Slurm what of it is idle; without partitions it
    says only what the GPUs are. Where Slurm does not answer, it alone counts, if it has partitions. The error names
    `option`, with which the command takes a file.
    """
    from sizing.inventory import from_slurm, with_idle

    if path is not None:
        return in_file(path)
    settings = config.load_found(config_path)
    corrections = config.find(config_path).with_name(CORRECTIONS)
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
    """The site's own words on its GPUs, out of its file of corrections, by each name that it gives them."""
    corrections = config.find(config_path).with_name(CORRECTIONS)
    types = in_file(str(corrections)).types.values() if corrections.exists() else ()
    return {name: known for known in types for name in (known.name, *known.names)}


def in_file(path: str) -> Inventory:
    """What a file says; "-" is standard input."""
    from sizing.inventory_file import parse

    return parse(text_of(path), name="standard input" if path == "-" else path)


def text_of(path: str) -> str:
    """The text of a file or, for "-", of standard input."""
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
