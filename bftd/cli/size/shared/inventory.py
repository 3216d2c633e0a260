"""The centre of `bft size`: the Slurm and the folder that the configuration names, and its inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bftd import config_file
from bftd.cli import common

if TYPE_CHECKING:
    from sizing.functions.site import Site
    from sizing.inventory.gpus import GpuType
    from sizing.inventory.inventory import Inventory


def site(config_path: str | None = None) -> Site:
    """Return the centre: its files are next to the configuration, and bftd's own partitions are left out."""
    from sizing.functions.site import Site

    def without() -> set[str]:
        slurm = config_file.load_found(config_path).slurm
        return {*slurm.harvested, slurm.driver_partition}

    return Site(
        config_file.find(config_path).parent,
        lambda: common.slurm_client(config_file.load_found(config_path)),
        without,
    )


def found(path: str | None = None, config_path: str | None = None, *, option: str = "--inventory") -> Inventory:
    """Return the inventory in the file at `path`, or else the centre's own (`Site.inventory`)."""
    return site(config_path).inventory(path, option=option)


def own_types(config_path: str | None = None) -> dict[str, GpuType]:
    """Return the site's descriptions of its GPUs by each name that it gives them."""
    return site(config_path).types()
