"""Reading a live site: what scontrol shows, and the plug-ins' files where they can be read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from slurm_plugin import sdiag
from slurm_plugin.client import SlurmClient
from slurm_plugin.errors import SlurmError, SnapshotError
from slurm_plugin.parse import partition_options
from slurm_plugin.settings import is_nothing, parse_config
from slurm_plugin.site.model import Site, SiteFile, Wanted

_INCLUDE = re.compile(r"^\s*include\s+(\S+)", re.MULTILINE)
_PLUGIN = re.compile(r"^\s*(?:required|optional)\s+(\S+)", re.MULTILINE)
_DOFILE = re.compile(r"dofile\s*[,(]\s*[\"']([^\"']*bftd\.lua)[\"']")
_NODE = re.compile(r"^NodeName=(\S+)", re.MULTILINE)
_RESERVATION = re.compile(r"^ReservationName=(\S+)", re.MULTILINE)
_DEEPEST_INCLUDE = 4


def read(client: SlurmClient, wanted: Wanted) -> Site:
    """Read the settings of the client's cluster; raises SlurmError when scontrol does not show them."""
    config = parse_config(_show(client, "config"))
    folder = Path(config["SLURM_CONF"]).parent
    plugstack = config.get("PlugStackConfig", "")
    stack = _file(folder / "plugstack.conf" if is_nothing(plugstack) else Path(plugstack))
    lua = _file(folder / "job_submit.lua")
    return Site(
        config=config,
        partitions=partition_options(_show(client, "partition", "-o", "--all")),
        node_names=tuple(_NODE.findall(_show(client, "nodes", "-o"))),
        lua=lua,
        plugstack=SiteFile(stack.path, stack.state, _with_includes(stack.text, Path(stack.path).parent)),
        wanted=wanted,
        missing_plugins=_missing_plugins(stack, config.get("PluginDir", "")),
        module_missing=_missing_module(lua),
        reservations=tuple(_RESERVATION.findall(_show(client, "reservation", "-o"))),
        load=_load(client),
        usage_factors=_usage_factors(client) if config.get("AccountingStorageType", "").endswith("slurmdbd") else None,
    )


def _show(client: SlurmClient, *what: str) -> str:
    answer = client.run("scontrol", "show", *what)
    if "permission denied" in answer.err.lower():
        raise SnapshotError(f"Slurm hides its {what[0]} from you (PrivateData): run this as root or a Slurm operator")
    if answer.code != 0:
        raise SnapshotError(f"scontrol failed: {answer.complaint}")
    return answer.out


def _load(client: SlurmClient) -> sdiag.Load | None:
    """The controller's load, as far as this user may ask for it."""
    try:
        answer = client.run("sdiag")
    except SlurmError:
        return None
    return sdiag.parse(answer.out) if answer.code == 0 else None


def _usage_factors(client: SlurmClient) -> Mapping[str, float] | None:
    """The UsageFactor of each QOS; None where sacctmgr does not tell this user."""
    try:
        answer = client.run("sacctmgr", "-nP", "show", "qos", "format=name,usagefactor")
        rows = [line.split("|") for line in answer.out.splitlines()]
        return {name: float(factor) for name, factor in rows} if answer.code == 0 else None
    except (SlurmError, ValueError):
        return None


def _file(path: Path) -> SiteFile:
    try:
        return SiteFile(str(path), "present", path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return SiteFile(str(path), "absent")
    except OSError:
        return SiteFile(str(path), "unreadable")


def _with_includes(text: str, folder: Path, depth: int = 0) -> str:
    """A plugstack file with the text of the files that it includes, which may be named by patterns."""
    parts = [text]
    if depth < _DEEPEST_INCLUDE:
        for pattern in _INCLUDE.findall(text):
            base, name = (Path("/"), pattern[1:]) if pattern.startswith("/") else (folder, pattern)
            for path in sorted(base.glob(name)):
                parts.append(_with_includes(_file(path).text, folder, depth + 1))
    return "\n".join(parts)


def _missing_plugins(stack: SiteFile, plugin_dirs: str) -> tuple[str, ...]:
    """Plug-ins of plugstack.conf that are not on this host; a bare name is looked for in Slurm's own folders."""
    missing = []
    for name in _PLUGIN.findall(_with_includes(stack.text, Path(stack.path).parent)):
        places = [Path(name)] if name.startswith("/") else [Path(folder) / name for folder in plugin_dirs.split(":")]
        if not any(place.exists() for place in places):
            missing.append(str(places[0]))
    return tuple(missing)


def _missing_module(lua: SiteFile) -> str:
    found = _DOFILE.search(lua.text)
    return found[1] if found and not Path(found[1]).exists() else ""
