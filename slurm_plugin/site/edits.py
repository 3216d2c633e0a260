"""A site as some edits would make it: nothing is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from slurm_plugin.read.settings import Shown, options
from slurm_plugin.site.model import Site, SiteFile
from slurm_plugin.site.rule import Edit

# Slurm's defaults for the options that a partition's line does not set.
_NEW_PARTITION = {
    "AllocNodes": "ALL",
    "Default": "NO",
    "DefaultTime": "NONE",
    "GraceTime": "0",
    "MaxNodes": "UNLIMITED",
    "MaxTime": "UNLIMITED",
    "MinNodes": "0",
    "OverSubscribe": "NO",
    "OverTimeLimit": "NONE",
    "PreemptMode": "OFF",
    "PriorityTier": "1",
    "ReqResv": "NO",
    "RootOnly": "NO",
    "SelectTypeParameters": "NONE",
    "State": "UP",
}
PARTITION = "PartitionName="


def change(site: Site, edits: Iterable[Edit]) -> Site:
    """Apply edits to a copy of a site."""
    for edit in edits:
        site = _CHANGES[edit.file](site, edit)
    return site


def merged(listed: str, edits: Iterable[Edit]) -> str:
    """Change a list such as SchedulerParameters: each edit sets one option, or with a leading minus removes it."""
    found = options(listed)
    for edit in edits:
        if edit.key.startswith("-"):
            found.pop(edit.key[1:], None)
        else:
            found[edit.key] = edit.value
    return ",".join(f"{key}={value}" if value else key for key, value in found.items())


def _slurm_conf(site: Site, edit: Edit) -> Site:
    if edit.target.startswith(PARTITION):
        name = edit.target.removeprefix(PARTITION)
        partition = Shown({**(site.partitions.get(name) or _NEW_PARTITION), edit.key: edit.value})
        return replace(site, partitions={**site.partitions, name: partition})
    if edit.target:
        text = merged(site.config.get(edit.target, ""), [edit])
        return replace(site, config=Shown({**site.config, edit.target: text or "(null)"}))
    return replace(site, config=Shown({**site.config, edit.key: edit.value}))


def _plugstack(site: Site, edit: Edit) -> Site:
    return replace(site, plugstack=_with_line(site.plugstack, edit), missing_plugins=())


def _lua(site: Site, edit: Edit) -> Site:
    return replace(site, lua=_with_line(site.lua, edit), module_missing="")


def _with_line(file: SiteFile, edit: Edit) -> SiteFile:
    """Put the line first in the file: a faulty line of ours further down must be removed by hand."""
    return SiteFile(file.path, "present", f"{edit.key}\n{file.text}")


def _bftd_toml(site: Site, edit: Edit) -> Site:
    changed: dict[str, Any] = {edit.key: edit.value}
    return replace(site, wanted=replace(site.wanted, **changed))


_CHANGES = {
    "slurm.conf": _slurm_conf,
    "plugstack.conf": _plugstack,
    "job_submit.lua": _lua,
    "bftd.toml": _bftd_toml,
}
