"""Checks of Slurm as this host and this user see it: the controller, munge, the plug-ins and the drivers' partition."""

from __future__ import annotations

import dataclasses
import grp
import os
import pwd
import re
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

from bftd.base.format import span
from bftd.config.keys import Config
from bftd.credentials import munge
from bftd.doctor.check import Check
from bftd.doctor.daemon import apart
from elastic.driver.pilots.addresses import given_address
from elastic.driver.settings import own_user
from elastic.options.job_script import Header, rewrite
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SlurmError
from slurm_plugin.pilots.start_estimate import asked_of
from slurm_plugin.read import sdiag
from slurm_plugin.read.settings import options, parse_config
from slurm_plugin.site import RULES, DaemonSettings, Finding, Site, check, plugstack, read
from slurm_plugin.site.plugins import lua_module
from slurm_plugin.site.read import module_of

_BFT_DRIVER = str(Path(sys.executable).parent / "bft-driver")
# A driver that starts later than this waits for a free CPU of a service node.
_AT_ONCE_S = 120.0
_SLURM_CONF = "/etc/slurm/slurm.conf"
_AUTH = re.compile(r"^\s*Auth(Type|Info)\s*=\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_RELEASE = re.compile(r"\d+\.\d+")
# With fewer jobs at once a trainer gets few nodes.
_JOBS_FEW = 16
# So many service nodes are looked up.
_NODES_MOST = 4
_ANY_PORT = 9


def wanted_of(settings: Config, driver: str = _BFT_DRIVER) -> DaemonSettings:
    """Return the configuration keys that Slurm has to agree with; `driver` is the path of bft-driver."""
    values: dict[str, Any] = {"driver": driver}
    for section in (settings.slurm, settings.pool, settings.api):
        values |= dataclasses.asdict(section)
    return DaemonSettings(**{field.name: values[field.name] for field in dataclasses.fields(DaemonSettings)})


class SlurmChecks:
    """The checks, in groups; without an answer of the controller's to the first, the others find nothing out."""

    def __init__(self, settings: Config) -> None:
        self._settings = settings
        conf = settings.slurm.conf
        self._client = SlurmClient(Path(conf) if conf else None, settings.slurm.timeout_s)
        self._config: Mapping[str, str] | None = None

    def controller(self) -> Iterator[Check]:
        """Check Slurm's commands, the controller, their releases and the controller's clock."""
        try:
            version = self._client.run("scontrol", "--version")
            yield Check("Slurm's commands", "unknown" if version.code else "ok", version.complaint)
            answer = self._client.run("scontrol", "show", "config")
            if answer.code:
                raise SlurmError(
                    f"{answer.complaint}: is slurmctld up, does [slurm] conf or $SLURM_CONF name its file?"
                )
            self._config = parse_config(answer.out)
        except SlurmError as error:
            yield Check("slurmctld", "failure", str(error))
            yield _unheard("slurmctld's clock")
        else:
            yield _releases(version.out.strip(), self._config["SLURM_VERSION"])
            yield self._clock()

    def _clock(self) -> Check:
        name, asked_s = "slurmctld's clock", time.time()
        answer = self._client.run("sdiag")
        load = sdiag.parse(answer.out) if answer.code == 0 else None
        if load is None or load.shown_s is None:
            return Check(name, "unknown", f"sdiag does not tell it to you: {answer.complaint}")
        return apart(name, load.shown_s - time.time(), load.shown_s + 1.0 - asked_s)

    def munge(self, *, over_tcp: bool) -> Iterator[Check]:
        """Check the munged of Slurm and, if the daemon is asked `over_tcp` with munge, that of bftd."""
        sockets = {self._settings.api.munge_socket: "bftd's requests"} if over_tcp else {}
        auth = self._auth()
        if auth.get("AuthType") == "auth/munge":
            sockets.setdefault(options(auth.get("AuthInfo", "")).get("socket", ""), "Slurm")
        for path, user in sockets.items():
            munge.decode(munge.encode(b"", to_uid=os.getuid(), socket=path), socket=path)
            yield Check("munge", "ok", f"munged{f' at {path}' if path else ''} makes and opens credentials for {user}")
        if not sockets and not auth:
            yield _unheard("munge")
        elif not sockets:
            yield Check("munge", "ok", f"not used: Slurm has {auth.get('AuthType')}")

    def _auth(self) -> Mapping[str, str]:
        """Return how Slurm authenticates: as the controller shows or, where munge may keep it silent, slurm.conf."""
        if self._config is not None:
            return self._config
        try:
            text = Path(self._settings.slurm.conf or os.environ.get("SLURM_CONF") or _SLURM_CONF).read_text("utf-8")
        except (OSError, UnicodeError):
            return {}
        return {"AuthType": "auth/munge"} | {f"Auth{key.title()}": value for key, value in _AUTH.findall(text)}

    def site(self) -> Iterator[Check]:
        """Check the site's settings, and the plug-ins as far as their files can be seen from here."""
        names = ("site settings", "SPANK plug-in", "job_submit.lua")
        if self._config is None:
            yield from map(_unheard, names)
            return
        wanted = wanted_of(self._settings)
        try:
            found = read(self._client, wanted)
        except SlurmError as error:
            yield from (Check(name, "unknown", str(error)) for name in names)
            return
        findings = [
            finding
            for partition in wanted.harvested
            for finding in check(
                dataclasses.replace(found, wanted=dataclasses.replace(wanted, partition=partition)), RULES
            )
        ]
        yield _settings(findings)
        yield _spank(found)
        yield _lua(found, {finding.rule.name: finding for finding in findings})

    def driver_partition(self) -> Iterator[Check]:
        """Check by a request that submits nothing whether a driver of this user's would start, and when."""
        name = self._settings.slurm.driver_partition
        if self._config is None:
            yield _unheard("driver partition")
            return
        partition = self._client.partition(name)
        # a request that submits nothing is not told of these two
        if partition.state != "UP":
            text = f"{name} is {partition.state}: scontrol update partitionname={name} state=up"
            yield Check("driver partition", "failure", text)
            return
        if not _may_use(partition.groups):
            text = f"{name} is for users of {' and '.join(partition.groups)} only: ask your administrators for access"
            yield Check("driver partition", "failure", text)
            return
        header = Header("1-1", "", self._settings.api.socket, "/bft-doctor.py", sys.executable)
        script = rewrite("#!/usr/bin/env python3\n", _BFT_DRIVER, header)
        said = asked_of(self._client, script, f"--partition={name}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1")
        if not said.taken:
            hint = "see bft site check, or ask your administrators who may use it"
            yield Check("driver partition", "failure", f"{name} takes no driver of yours: {said.words}: {hint}")
        elif said.start_s is None or said.start_s - time.time() <= _AT_ONCE_S:
            yield Check("driver partition", "ok", f"{name} would start a driver of yours now")
        else:
            wait = span(said.start_s - time.time())
            text = f"{name} would start a driver of yours in {wait}: its nodes are full or down, see sinfo -p {name}"
            yield Check("driver partition", "warning", text)

    def job_limits(self) -> Iterator[Check]:
        """Check the limits on jobs of this user's associations: each pilot is a job."""
        name, user = "association", own_user()
        if self._config is None:
            yield _unheard(name)
            return
        if not self._config.get("AccountingStorageType", "").endswith("slurmdbd"):
            yield Check(name, "ok", "not used: Slurm has no slurmdbd")
            return
        form = "format=account,maxjobs,maxsubmit,grpjobs,grpsubmit"
        answer = self._client.run("sacctmgr", "-nP", "show", "assoc", f"user={user}", form)
        rows = [line.split("|") for line in answer.out.splitlines() if line.strip()]
        most = {account: min(map(int, filter(str.isdecimal, numbers)), default=inf) for account, *numbers in rows}
        few = ", ".join(f"{most[account]} in {account}" for account in most if most[account] < _JOBS_FEW)
        if answer.code:
            yield Check(name, "unknown", f"sacctmgr does not tell: {answer.complaint}")
        elif not rows:
            yield Check(name, "warning", f"{user} is in no account: ask your administrators for one")
        elif few:
            text = f"few jobs at once ({few}), and each node of a trainer is one: ask your administrators for more"
            yield Check(name, "warning", text)
        else:
            yield Check(name, "ok", f"{user} is in {', '.join(sorted(most))}")

    def drivers_host(self) -> Iterator[Check]:
        """Check that the service nodes, where drivers run, resolve and have a route from here."""
        name = "service nodes"
        if self._config is None:
            yield _unheard(name)
            return
        given_address()
        nodes = self._client.partition(self._settings.slurm.driver_partition).nodes
        known = self._client.node_addresses()
        lost = [node for node in nodes[:_NODES_MOST] if not _has_route(known[node].address if node in known else node)]
        if lost:
            text = f"{', '.join(lost)} cannot be reached from here: add them to DNS or /etc/hosts, or a route"
            yield Check(name, "failure", text)
        else:
            yield Check(name, "ok", f"{', '.join(nodes[:_NODES_MOST])} resolve and have a route (no port was tried)")


def _unheard(name: str) -> Check:
    return Check(name, "unknown", "slurmctld gave no answer: see above")


def _releases(commands: str, controller: str) -> Check:
    mine, its = _RELEASE.search(commands), _RELEASE.search(controller)
    if mine and its and mine[0] != its[0]:
        text = f"Slurm {controller}, and this host's commands are of {mine[0]}: see that Slurm supports both together"
        return Check("slurmctld", "warning", text)
    return Check("slurmctld", "ok", f"Slurm {controller} answers")


def _settings(findings: list[Finding]) -> Check:
    counted = {finding.rule.name: finding.level for finding in findings if finding.level != "ok"}
    must = [name for name, level in counted.items() if level == "must"]
    if must:
        return Check("site settings", "failure", f"{'; '.join(must)}: see bft site check")
    advice = f", {len(counted)} advice (bft site check)" if counted else ""
    return Check("site settings", "ok", f"nothing must change{advice}")


def _spank(site: Site) -> Check:
    name = "SPANK plug-in"
    if site.plugin_fault:
        return Check(
            name, "failure", f"{site.plugin_fault}: take its line out with bft site plugin --off, or build it again"
        )
    if missing := [path for path in site.missing_plugins if path.endswith(plugstack.NAME)]:
        return Check(
            name,
            "failure",
            f"{missing[0]} is not on this host: install it, or take its line out of {site.plugstack.path}",
        )
    if site.plugstack.state == "unreadable":
        return Check(name, "unknown", f"{site.plugstack.path} is not readable for you")
    if plugstack.is_named(site.plugstack):
        return Check(name, "ok", "sbatch --elastic works on this host")
    return Check(name, "ok", "not used on this host: submit with bft sbatch --elastic")


def _lua(site: Site, findings: Mapping[str, Finding]) -> Check:
    name = "job_submit.lua"
    if name not in findings:
        if site.wanted.pilot_mode == "sbatch":
            return Check(name, "ok", "not in JobSubmitPlugins")
        text = "not in JobSubmitPlugins: Slurm refuses pilots while jobs wait, see bft site config"
        return Check(name, "warning", text)
    if site.lua.state != "present":
        why = "is not on this host" if site.lua.state == "absent" else "is not readable for you"
        return Check(name, "unknown", f"{site.lua.path} {why}: run bft doctor on slurmctld's host, as root")
    if site.module_missing:
        return Check(name, "failure", f"{findings[name].seen}: install it there, see slurm.md")
    if findings[name].level != "ok":
        return Check(name, "warning", f"{findings[name].seen}: see bft site config")
    module = module_of(site.lua)
    try:
        same = Path(module).read_text(encoding="utf-8") == lua_module()
    except OSError:
        return Check(name, "unknown", f"{module} is not readable for you: run bft doctor as root")
    if not same:
        return Check(name, "warning", f"{module} is of another release of bftd: copy this one's, and reconfigure Slurm")
    return Check(name, "ok", f"{site.lua.path} loads this release's {module}")


def _may_use(groups: Collection[str]) -> bool:
    """Whether a partition's AllowGroups let this user in, by the user's groups here; Slurm lets root in always."""
    if not groups or os.getuid() == 0:
        return True
    try:
        known = pwd.getpwuid(os.getuid())
        own = os.getgrouplist(known.pw_name, known.pw_gid)
    except KeyError:
        own = os.getgroups()
    return not {_name_of(group) for group in own}.isdisjoint(groups)


def _name_of(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)


def _has_route(address: str) -> bool:
    """Whether an address resolves and has a route; connecting a datagram socket sends nothing."""
    try:
        for family, kind, *_, target in socket.getaddrinfo(address, _ANY_PORT, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as sock:
                sock.connect(target)
                return True
    except (OSError, UnicodeError):
        pass
    return False
