"""The configuration files of the private cluster, as text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.sandbox.munged import socket_of

# For tests that should not wait for Slurm and do not test its own settings: the scheduler reacts to every submission
# and end at once and plans once a second; a job that ignores SIGTERM is killed after 2 s; of the pilots that could be
# preempted, those that lose the least work go first.
_TUNED = """\
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,bf_continue,preempt_youngest_first
KillWait=2
"""
# The last of two lines about one setting counts. CPUs are bound without cgroups, so root is not needed.
_SHARED = """\
SelectTypeParameters=CR_Core_Memory
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
"""
# Newer slurmds use the machine's cgroups, whatever the plug-ins, unless they are told not to.
_CGROUPS_CAN_BE_DISABLED = (24, 5)
_NO_AUTH = "AuthType=auth/none\nCredType=cred/none\n"


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The shape of a private cluster; `gpus` is GPU type -> GPUs per node, nodes are split evenly among types.

    `stand_ins` are sets of nodes without a slurmd of their own, each with its options in slurm.conf. On `shared` nodes,
    jobs get some of the CPUs and memory and are confined to both.
    """

    nodes: int = 8
    service_nodes: int = 1
    gpus: tuple[tuple[str, int], ...] = ()
    cpus_per_node: int = 4
    memory_mb_per_node: int = 4000
    service_cpus: int = 256
    tuned: bool = False
    extra_conf: str = ""
    plugins: bool = False
    munge: bool = False
    stand_ins: tuple[tuple[str, str], ...] = ()
    shared: bool = False

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the compute nodes, n1 upwards."""
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

    @property
    def service_names(self) -> tuple[str, ...]:
        """Names of the service nodes, svc1 upwards."""
        return tuple(f"svc{number}" for number in range(1, self.service_nodes + 1))

    def gpus_of(self) -> dict[str, tuple[str, int]]:
        """Map each compute node that has GPUs to their type and number."""
        if not self.gpus:
            return {}
        share = -(-self.nodes // len(self.gpus))
        return {name: self.gpus[index // share] for index, name in enumerate(self.node_names)}


def slurm_conf(shape: ClusterShape, root: Path, host: str, user: str, ports: list[int]) -> str:
    """Write slurm.conf for a cluster in `root`; `ports` holds the controller's, then one per node in order of name."""
    whole = "NO" if shape.shared else "EXCLUSIVE"
    batch = ",".join((*shape.node_names, *(names for names, _ in shape.stand_ins)))
    service = ",".join(shape.service_names)
    lines = [
        _header(root, host, user, ports[0]),
        _auth(root) if shape.munge else _NO_AUTH,
        _SHARED if shape.shared else "",
        _TUNED if shape.tuned else "",
        f"{shape.extra_conf}\n" if shape.extra_conf else "",
        *_node_lines(shape, host, ports[1:]),
        *_stand_in_lines(shape, ports[1]),
        f"PartitionName=batch Nodes={batch} Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF "
        f"OverSubscribe={whole}\n",
        f"PartitionName=elastic Nodes={batch} MaxTime=60 DefaultTime=1 MaxNodes=1 State=UP PriorityTier=1 "
        f"PreemptMode=CANCEL GraceTime=0 OverSubscribe={whole}\n",
    ]
    if service:
        lines.append(
            f"PartitionName=bft-driver Nodes={service} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF "
            "OverSubscribe=NO\n"
        )
    return "".join(lines)


def plugstack_conf(plugin: Path | None, bft: Path) -> str:
    """Write plugstack.conf: the SPANK plug-in with the program that it calls to size GPU requests, or nothing."""
    return f"optional {plugin} bft={bft}\n" if plugin else ""


def job_submit_lua(shipped: str, root: Path, driver: Path, administrator: int, reservation: str = "") -> str:
    """Complete the shipped job_submit.lua as an administrator would: the path of bftd.lua, and the settings."""
    settings = f'driver = "{driver}", socket = "{root}/bftd.sock", administrators = {{ 0, {administrator} }}'
    if reservation:
        settings += f', reservation = "{reservation}"'
    return shipped.replace("/etc/slurm/bftd.lua", f"{root}/bftd.lua").replace(
        "install({})", f"install({{ {settings} }})"
    )


def gres_conf(shape: ClusterShape, devices: Path) -> str:
    """Write gres.conf; every node of one host may name the same device files nvidia0, nvidia1, ... in `devices`."""
    lines = []
    for name, (kind, count) in shape.gpus_of().items():
        files = f"nvidia[0-{count - 1}]" if count > 1 else "nvidia0"
        lines.append(f"NodeName={name} Name=gpu Type={kind} File={devices}/{files}\n")
    return "".join(lines)


def cgroup_conf(release: tuple[int, int]) -> str:
    """Write cgroup.conf so that Slurm leaves the machine's cgroups alone; "" for a release that does so by default."""
    return "CgroupPlugin=disabled\n" if release >= _CGROUPS_CAN_BE_DISABLED else ""


def _header(root: Path, host: str, user: str, port: int) -> str:
    # Messages may be unauthenticated, so every daemon listens on the loopback address only.
    return f"""\
ClusterName=sandbox
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
PlugStackConfig={root}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
JobSubmitPlugins=lua
"""


def _auth(root: Path) -> str:
    """Return the lines for authentication of messages and job credentials by the cluster's own munged."""
    return f"AuthType=auth/munge\nAuthInfo=socket={socket_of(root)}\nCredType=cred/munge\n"


def _node_lines(shape: ClusterShape, host: str, ports: list[int]) -> list[str]:
    gpus = shape.gpus_of()
    lines = []
    for name, port in zip(shape.node_names + shape.service_names, ports, strict=True):
        cpus = shape.service_cpus if name in shape.service_names else shape.cpus_per_node
        gres = f" Gres=gpu:{gpus[name][0]}:{gpus[name][1]}" if name in gpus else ""
        lines.append(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} "
            f"RealMemory={shape.memory_mb_per_node}{gres} State=UNKNOWN\n"
        )
    return lines


def _stand_in_lines(shape: ClusterShape, port: int) -> list[str]:
    """Return lines for nodes for which the slurmd at `port` answers, so that they are idle without having registered.

    It does not know their jobs, so jobs allocated there start nothing and end at once. Messages must come directly from
    the controller: a node that forwards one uses its own name.
    """
    if not shape.stand_ins:
        return []
    lines = [
        f"NodeName={names} NodeHostname={names} NodeAddr=127.0.0.1 Port={port} {options} State=IDLE\n"
        for names, options in shape.stand_ins
    ]
    return ["TreeWidth=65000\n", *lines]
