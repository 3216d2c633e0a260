"""Sites made from recorded answers, and every way to spoil the recommended one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bftd.config.keys import Config
from bftd.doctor.slurm import wanted_of
from slurm_plugin.read import sdiag
from slurm_plugin.read.parse import partition_options
from slurm_plugin.read.settings import parse_config
from slurm_plugin.site.model import Site, SiteFile

ASSETS = Path(__file__).parent / "assets"
LUA = 'local found, bftd = pcall(dofile, "/etc/slurm/bftd.lua")\nif found then bftd.install({}) else x() end\n'
# What the daemon's defaults want of a site where it is installed from a package.
WANTED = wanted_of(Config(), driver="/usr/bin/bft-driver")
DBD = "accounting_storage/slurmdbd"
# Of an idle private cluster with Slurm 22.05: a cycle takes two milliseconds at most.
LOAD = sdiag.parse((ASSETS / "22.05" / "recommended" / "sdiag.txt").read_text())


def recorded(name: str, release: str = "22.05") -> Site:
    """The site of a recorded cluster; the plug-ins' files are there where it is the recommended one."""
    folder = ASSETS / release / name
    good = name == "recommended"
    return Site(
        config=parse_config((folder / "config.txt").read_text()),
        partitions=partition_options((folder / "partitions.txt").read_text()),
        node_names=tuple(re.findall(r"^NodeName=(\S+)", (folder / "nodes.txt").read_text(), re.MULTILINE)),
        lua=SiteFile("/etc/slurm/job_submit.lua", "present" if good else "absent", LUA if good else ""),
        plugstack=SiteFile("/etc/slurm/plugstack.conf", "present", "optional /p/spank_bftd.so\n" if good else ""),
        wanted=WANTED,
        load=LOAD,
    )


Spoil = Callable[[Site], Site]


def setting(key: str, value: str) -> Spoil:
    return lambda site: replace(site, config={**site.config, key: value})


def scheduler(change: Callable[[str], str]) -> Spoil:
    def spoil(site: Site) -> Site:
        return replace(site, config={**site.config, "SchedulerParameters": change(site.config["SchedulerParameters"])})

    return spoil


def option(partition: str, key: str, value: str) -> Spoil:
    def spoil(site: Site) -> Site:
        return replace(site, partitions={**site.partitions, partition: {**site.partitions[partition], key: value}})

    return spoil


def without(partition: str) -> Spoil:
    return lambda site: replace(
        site, partitions={name: fields for name, fields in site.partitions.items() if name != partition}
    )


def scheduled(more: str) -> Spoil:
    """The site with some more in its SchedulerParameters."""
    return scheduler(lambda text: more if text == "(null)" else f"{text},{more}")


def under(**load: float) -> Spoil:
    """The site under another load of its controller."""

    # where another fault took sdiag's answer away, there is no load to change
    return lambda site: replace(site, load=replace(site.load, **load) if site.load else None)


def both(*spoils: Spoil) -> Spoil:
    def spoil(site: Site) -> Site:
        for one in spoils:
            site = one(site)
        return site

    return spoil


# The one rule that each finds fault with, its level, and the fault.
SPOILED: tuple[tuple[str, str, Spoil], ...] = (
    ("Slurm release", "advice", setting("SLURM_VERSION", "21.08.5")),
    ("Slurm release", "advice", lambda site: _after_22_05(site, "27.05.0")),
    ("PreemptType", "must", setting("PreemptType", "preempt/none")),
    ("PreemptType", "must", setting("PreemptType", "preempt/qos")),
    ("PreemptMode", "must", setting("PreemptMode", "OFF")),
    ("PreemptExemptTime", "must", setting("PreemptExemptTime", "00:05:00")),
    ("KillWait", "advice", setting("KillWait", "120 sec")),
    ("MessageTimeout", "advice", setting("MessageTimeout", "60 sec")),
    ("Prolog", "advice", setting("Prolog", "/etc/slurm/prolog.sh")),
    ("Epilog", "advice", setting("Epilog", "/etc/slurm/epilog.sh")),
    ("Epilog", "advice", setting("Epilog[0]", "/etc/slurm/epilog.sh")),
    ("ProctrackType", "advice", setting("ProctrackType", "proctrack/pgid")),
    ("SelectType", "advice", setting("SelectType", "select/linear")),
    ("PrivateData", "must", setting("PrivateData", "accounts,jobs")),
    ("MaxJobCount", "advice", setting("MaxJobCount", "5000")),
    ("AccountingStorageEnforce", "advice", setting("AccountingStorageEnforce", "associations,limits,qos")),
    ("harvested partition: TRESBillingWeights", "advice", setting("AccountingStorageType", DBD)),
    (
        "harvested partition: TRESBillingWeights",
        "advice",
        both(setting("AccountingStorageType", DBD), option("elastic", "TRESBillingWeights", "CPU=0.0,Mem=0.25G")),
    ),
    ("pilots' QOS", "advice", lambda site: _limited(site, {"normal": 1.0})),
    ("pilots' QOS", "advice", lambda site: _limited(site, {"bft-pilots": 1.0})),
    ("pilots' QOS", "advice", lambda site: _limited(site, None)),
    ("SlurmctldParameters: rl_enable", "advice", setting("SlurmctldParameters", "rl_enable,idle_on_node_suspend")),
    ("CliFilterPlugins", "advice", setting("CliFilterPlugins", "lua")),
    ("ReturnToService", "advice", setting("ReturnToService", "0")),
    ("SuspendTime", "advice", setting("SuspendTime", "300 sec")),
    ("SchedulerType", "must", setting("SchedulerType", "sched/builtin")),
    ("SchedulerType", "must", scheduled("bf_interval=-1")),
    ("SchedulerParameters: bf_interval", "advice", scheduled("bf_interval=4")),
    ("earmark", "advice", lambda site: replace(site, wanted=replace(site.wanted, earmark=False))),
    ("SchedulerParameters: bf_max_time", "advice", under(max_cycle_s=31.0)),
    ("SchedulerParameters: bf_max_time", "advice", both(scheduled("bf_interval=10"), under(max_cycle_s=9.0))),
    ("SchedulerParameters: bf_max_time", "advice", both(scheduled("bf_max_time=60"), under(timeouts=3))),
    ("sdiag", "advice", lambda site: replace(site, load=None)),
    ("SchedulerParameters: bf_window", "advice", scheduled("bf_window=30")),
    ("SchedulerParameters: bf_max_job_test", "advice", under(queue_length=4000)),
    (
        "SchedulerParameters: bf_yield_interval, bf_yield_sleep",
        "advice",
        scheduled("bf_yield_interval=1,bf_yield_sleep=1000000"),
    ),
    (
        "SchedulerParameters: max_rpc_cnt",
        "advice",
        both(scheduled("max_rpc_cnt=150"), under(threads=140)),
    ),
    ("SchedulerParameters: bf_continue", "advice", scheduler(lambda text: text.replace(",bf_continue", ""))),
    ("SchedulerParameters: bf_resolution", "advice", scheduled("bf_resolution=600")),
    (
        "SchedulerParameters: bf_min_age_reserve, bf_min_prio_reserve",
        "advice",
        scheduled("bf_min_age_reserve=60"),
    ),
    (
        "SchedulerParameters: sched_interval",
        "advice",
        scheduled("sched_interval=-1"),
    ),
    (
        "SchedulerParameters: sched_min_interval",
        "advice",
        scheduled("sched_min_interval=9000000"),
    ),
    ("SchedulerParameters: batch_sched_delay", "advice", scheduled("batch_sched_delay=10")),
    (
        "SchedulerParameters: preempt_youngest_first",
        "advice",
        scheduler(lambda text: text.replace("preempt_youngest_first,", "")),
    ),
    ("harvested partition", "must", without("elastic")),
    ("harvested partition: Nodes", "must", option("elastic", "Nodes", "n[1-2],svc1")),
    ("harvested partition: Nodes", "must", option("elastic", "Nodes", "(null)")),
    ("harvested partition: State", "must", option("elastic", "State", "DOWN")),
    ("harvested partition: PriorityTier", "must", option("elastic", "PriorityTier", "1")),
    ("harvested partition: PreemptMode", "must", option("elastic", "PreemptMode", "SUSPEND")),
    ("harvested partition: GraceTime", "advice", option("elastic", "GraceTime", "10")),
    ("harvested partition: OverSubscribe", "must", option("elastic", "OverSubscribe", "FORCE:4")),
    ("harvested partition: MaxTime", "must", option("elastic", "MaxTime", "00:30:00")),
    ("harvested partition: MaxTime bounds", "advice", option("elastic", "MaxTime", "UNLIMITED")),
    ("harvested partition: MaxTime bounds", "advice", option("elastic", "MaxTime", "1-00:00:00")),
    ("harvested partition: DefaultTime", "advice", option("elastic", "DefaultTime", "NONE")),
    ("harvested partition: DefaultTime", "advice", option("elastic", "DefaultTime", "01:00:00")),
    ("harvested partition: MaxNodes", "advice", option("elastic", "MaxNodes", "UNLIMITED")),
    ("harvested partition: MinNodes", "must", option("elastic", "MinNodes", "2")),
    ("harvested partition: Default", "must", option("elastic", "Default", "YES")),
    ("harvested partition: RootOnly", "must", option("elastic", "RootOnly", "YES")),
    ("harvested partition: ReqResv", "must", option("elastic", "ReqResv", "YES")),
    ("harvested partition: AllocNodes", "must", option("elastic", "AllocNodes", "login[1-2]")),
    ("harvested partition: OverTimeLimit", "advice", setting("OverTimeLimit", "5 min")),
    ("harvested partition: OverTimeLimit", "advice", option("elastic", "OverTimeLimit", "UNLIMITED")),
    (
        "regular partitions: PreemptMode",
        "advice",
        lambda site: replace(
            site,
            partitions={
                **site.partitions,
                "urgent": {**site.partitions["batch"], "PriorityTier": "20"},
                "batch": {**site.partitions["batch"], "PreemptMode": "CANCEL"},
            },
        ),
    ),
    ("driver partition", "must", without("bft-driver")),
    ("driver partition: State", "must", option("bft-driver", "State", "INACTIVE")),
    ("driver partition: Nodes", "must", option("bft-driver", "Nodes", "(null)")),
    (
        "driver partition: PreemptMode",
        "must",
        both(
            option("bft-driver", "PreemptMode", "CANCEL"),
            lambda site: replace(
                site,
                partitions={
                    **site.partitions,
                    "service": {**site.partitions["bft-driver"], "PriorityTier": "20", "PreemptMode": "OFF"},
                },
            ),
        ),
    ),
    ("driver partition: MaxTime", "advice", option("bft-driver", "MaxTime", "04:00:00")),
    ("driver partition: OverSubscribe", "advice", option("bft-driver", "OverSubscribe", "EXCLUSIVE")),
    ("driver partition: memory", "advice", setting("SelectTypeParameters", "CR_CORE_MEMORY")),
    ("driver partition: RootOnly", "must", option("bft-driver", "RootOnly", "YES")),
    ("driver partition: ReqResv", "must", option("bft-driver", "ReqResv", "YES")),
    ("job_submit.lua", "advice", lambda site: replace(site, lua=SiteFile("/etc/slurm/job_submit.lua", "unreadable"))),
    ("job_submit.lua", "advice", lambda site: replace(site, lua=_lua('{ partition = "harvest" }'))),
    ("job_submit.lua", "advice", lambda site: replace(site, lua=_lua("{ pilot_limit_min = 30 }"))),
    ("job_submit.lua", "advice", lambda site: replace(site, lua=_lua('{ administrators = { 0 }, socket = "/x" }'))),
    ("job_submit.lua", "advice", lambda site: replace(site, module_missing="/etc/slurm/bftd.lua")),
    ("pilots' reservation", "advice", lambda site: replace(_after_22_05(site, "24.11.5"), reservations=("repair",))),
    ("job_submit.lua", "advice", lambda site: replace(_after_22_05(site, "24.11.5"), lua=_lua("{}"))),
    ("PlugStackConfig", "advice", lambda site: replace(site, plugstack=SiteFile("/p.conf", "present", "#\n"))),
    (
        "PlugStackConfig",
        "advice",
        lambda site: replace(site, plugstack=SiteFile("/p.conf", "present", "required spank_bftd.so\n")),
    ),
    ("PlugStackConfig", "advice", lambda site: replace(site, missing_plugins=("/p/spank_bftd.so",))),
    ("SPANK plug-in", "must", lambda site: replace(site, plugin_fault="/p/spank_bftd.so is for Slurm 22.05")),
    (
        "pilot_mode",
        "advice",
        lambda site: replace(
            site, wanted=replace(site.wanted, pilot_mode="sbatch"), lua=_lua('{ pilot_mode = "sbatch" }')
        ),
    ),
    # These two take the immediate allocations away, so the daemon's pilot_mode is wrong too.
    ("SchedulerParameters: defer", "advice", scheduled("defer")),
    ("JobSubmitPlugins", "advice", setting("JobSubmitPlugins", "(null)")),
)
BRINGS_PILOT_MODE = frozenset({"SchedulerParameters: defer", "JobSubmitPlugins", "job_submit.lua"})

# A site that enforces limits on used time enforces limits.
BRINGS_LIMITS = frozenset({"pilots' QOS"})

# What no line of ours can make right: a site decides on it, or it is how the machine is.
NOT_OURS = frozenset(
    {
        "Slurm release",
        "SPANK plug-in",
        "KillWait",
        "MessageTimeout",
        "sdiag",
        "earmark",
        "SchedulerParameters: bf_interval",
        "SchedulerParameters: bf_max_time",
        "SchedulerParameters: bf_resolution",
        "SchedulerParameters: bf_window",
        "SchedulerParameters: bf_max_job_test",
        "SchedulerParameters: bf_yield_interval, bf_yield_sleep",
        "SchedulerParameters: bf_min_age_reserve, bf_min_prio_reserve",
        "SchedulerParameters: max_rpc_cnt",
        "SchedulerParameters: sched_interval",
        "SchedulerParameters: sched_min_interval",
        "SchedulerParameters: batch_sched_delay",
        "Prolog",
        "Epilog",
        "ProctrackType",
        "SelectType",
        "AccountingStorageEnforce",
        "pilots' QOS",
        "CliFilterPlugins",
        "SuspendTime",
        "pilots' reservation",
        "regular partitions: PreemptMode",
    }
)


def _lua(settings: str) -> SiteFile:
    return SiteFile("/etc/slurm/job_submit.lua", "present", LUA.replace("{}", settings))


def _after_22_05(site: Site, version: str) -> Site:
    """The site as it has to be on a newer release: with the pilots' reservation, and Lua lines that name it."""
    newer = replace(site, config={**site.config, "SLURM_VERSION": version}, reservations=("bft-pilots",))
    return replace(newer, lua=_lua('{ reservation = "bft-pilots" }')) if site.lua.text else newer


def _limited(site: Site, factors: dict[str, float] | None) -> Site:
    """The site with slurmdbd, limits, and all that keeps pilots out of them but for the QOS itself."""
    spoil = both(setting("AccountingStorageType", DBD), option("elastic", "TRESBillingWeights", "CPU=0"))
    limited = replace(spoil(site), lua=_lua('{ qos = "bft-pilots" }') if site.lua.text else site.lua)
    return replace(setting("AccountingStorageEnforce", "associations,safe")(limited), usage_factors=factors)
