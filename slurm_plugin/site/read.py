"""Reading of a live site: the output of scontrol, and the plug-ins' files if they are readable."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SlurmError, SnapshotError
from slurm_plugin.read import sdiag
from slurm_plugin.read.parse import partition_options
from slurm_plugin.read.settings import parse_config
from slurm_plugin.site import plugstack
from slurm_plugin.site.model import DaemonSettings, Site, SiteFile

_DOFILE = re.compile(r"dofile\s*[,(]\s*[\"']([^\"']*bftd\.lua)[\"']")
_NODE = re.compile(r"^NodeName=(\S+)", re.MULTILINE)
_RESERVATION = re.compile(r"^ReservationName=(\S+)", re.MULTILINE)


def read(client: SlurmClient, wanted: DaemonSettings) -> Site:
    """Read the settings of the client's cluster; raise SlurmError if scontrol does not show them."""
    config = parse_config(_show(client, "config"))
    stack, folders = plugstack.read(config), config.get("PluginDir", "")
    lua = plugstack.read_file(Path(config["SLURM_CONF"]).parent / "job_submit.lua")
    return Site(
        config=config,
        partitions=partition_options(_show(client, "partition", "-o", "--all")),
        node_names=tuple(_NODE.findall(_show(client, "nodes", "-o"))),
        lua=lua,
        plugstack=stack,
        wanted=wanted,
        missing_plugins=plugstack.missing(stack, folders),
        plugin_fault=plugstack.fault(stack, folders),
        module_missing=_missing_module(lua),
        reservations=tuple(_RESERVATION.findall(_show(client, "reservation", "-o"))),
        load=_load(client),
        usage_factors=_usage_factors(client) if config.get("AccountingStorageType", "").endswith("slurmdbd") else None,
    )


def plugin_folders(client: SlurmClient) -> str:
    """Return Slurm's PluginDir, which may name several folders; raise SlurmError if scontrol does not show it."""
    return parse_config(_show(client, "config"))["PluginDir"]


def _show(client: SlurmClient, *what: str) -> str:
    answer = client.run("scontrol", "show", *what)
    if "permission denied" in answer.err.lower():
        raise SnapshotError(f"Slurm hides its {what[0]} from you (PrivateData): run this as root or a Slurm operator")
    if answer.code != 0:
        raise SnapshotError(f"scontrol failed: {answer.complaint}")
    return answer.out


def _load(client: SlurmClient) -> sdiag.Load | None:
    """Return the controller's load, or None if this user may not ask for it."""
    try:
        answer = client.run("sdiag")
    except SlurmError:
        return None
    return sdiag.parse(answer.out) if answer.code == 0 else None


def _usage_factors(client: SlurmClient) -> Mapping[str, float] | None:
    """Return the UsageFactor of each QOS; None if sacctmgr does not show it to this user."""
    try:
        answer = client.run("sacctmgr", "-nP", "show", "qos", "format=name,usagefactor")
        rows = [line.split("|") for line in answer.out.splitlines()]
        return {name: float(factor) for name, factor in rows} if answer.code == 0 else None
    except (SlurmError, ValueError):
        return None


def module_of(lua: SiteFile) -> str:
    """Return the path of the bftd.lua that job_submit.lua loads; "" if it loads none."""
    found = _DOFILE.search(lua.text)
    return found[1] if found else ""


def _missing_module(lua: SiteFile) -> str:
    module = module_of(lua)
    return module if module and not os.path.exists(module) else ""  # it raises nothing, whatever the name
