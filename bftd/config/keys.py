"""The keys of the configuration: the single definition behind parsing, checks, defaults and documentation.

Each section is a frozen dataclass and each key a field with its default, unit, one line of documentation and an
example. Nothing else in the project knows a key's name, type or default.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from bftd.config import hours
from bftd.config.fields import checked
from bftd.config.fields import key as _key
from bftd.protocol import container as containers
from bftd.protocol.address import DEFAULT_USER
from bftd.protocol.bounds import COMMAND_LEAST_S, COMMAND_MOST_S


def _check_folder(value: str) -> None:
    """Raise ValueError unless `value` can be a folder on each node; `{user}` in it stands for the trainer's user."""
    if value and (not value.startswith("/") or ".." in value.split("/") or not value.isprintable()):
        raise ValueError(f"give a folder from / on, for example /local/scratch, not {value!r}")


def _check_solver(value: str) -> None:
    if value == "auto":  # most commands that read the configuration do not need numpy
        return
    from milp import UnsupportedError, check_solver

    try:
        check_solver(value)
    except UnsupportedError as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True)
class DaemonConfig:
    """The daemon's mode and user, and its administrators."""

    mode: str = _key(
        "live",
        "live, or shadow: decide and log, with imaginary trainers on the real cluster, and touch nothing.",
        choices=("live", "shadow"),
    )
    shadow_trainers: int = _key(
        10, "Imaginary trainers that compete for nodes in shadow mode.", minimum=1, maximum=1000
    )
    user: str = _key(
        DEFAULT_USER, "Unix user the daemon runs as, or its uid; clients on other hosts believe no other but root."
    )
    administrators: str = _key(
        "",
        "Unix group whose members may act on all trainers, and tune and pause the daemon; empty is nobody but root.",
        example="bftadmin",
    )


@dataclass(frozen=True)
class SlurmConfig:
    """Access to Slurm, and the partitions that bftd uses."""

    conf: str = _key("", "Path of slurm.conf; empty leaves the choice to Slurm.", example="/etc/slurm/slurm.conf")
    poll_s: float = _key(1.0, "Time between two snapshots.", unit="s", minimum=0.1, maximum=60.0)
    timeout_s: float = _key(
        5.0,
        "A Slurm command that takes longer has failed, also one of a driver.",
        unit="s",
        minimum=COMMAND_LEAST_S,
        maximum=COMMAND_MOST_S,
    )
    backend: str = _key(
        "text",
        "How snapshots are read: text (Slurm's commands) or pyslurm (of this Slurm release, installed by the site).",
        choices=("text", "pyslurm"),
    )
    partition: str = _key("elastic", "Preemptible partition whose idle nodes are harvested.")
    partitions: tuple[str, ...] = _key(
        (), "Several such partitions, instead of `partition`.", example=("elastic-gpu", "elastic-cpu")
    )
    driver_partition: str = _key("bft-driver", "Partition of service nodes, where the drivers run.")
    submit_rate_per_min: int = _key(600, "Most pilots asked for in a minute, all trainers together.", minimum=1)
    pilot_mode: str = _key(
        "salloc",
        "How pilots start: salloc (granted at once or not at all) or sbatch (sites without the job_submit plugin).",
        choices=("salloc", "sbatch"),
    )
    operator: bool = _key(
        False, "Whether bftd has operator rights in Slurm and may cancel pilots that no lease stands behind."
    )
    operator_cancels_per_min: int = _key(
        10, "Most jobs without a lease that are cancelled in a minute.", minimum=1, maximum=1000
    )

    @property
    def harvested(self) -> tuple[str, ...]:
        """All partitions whose idle nodes are harvested, in the file's order."""
        return self.partitions or (self.partition,)


@dataclass(frozen=True)
class PoolConfig:
    """The idle nodes that trainers are offered, and the time at which they are given back."""

    # Whether a reload applies changes; the other sections describe open files or the daemon itself.
    RELOADED: ClassVar[bool] = True

    debounce_polls: int = _key(2, "Polls for which a node must be idle before it is offered.", minimum=1, maximum=100)
    min_window_s: float = _key(20.0, "A node planned sooner than this is not offered.", unit="s", minimum=0.0)
    vacate_ahead_s: float = _key(
        5.0, "Pilots leave a node this long before a regular job is planned to start on it.", unit="s", minimum=0.0
    )
    earmark: bool = _key(
        True, "Whether nodes are earmarked for regular jobs before Slurm's next backfill cycle asks for them."
    )
    class_features: tuple[str, ...] = _key(
        (),
        "Features that tell classes of nodes apart, beside GPUs, CPUs and memory; a trainer runs on one class.",
        example=("nvlink", "ib"),
    )
    spare_nodes: int = _key(
        0, "Idle nodes that stay free for regular jobs while any of them waits for nodes; 0 lends all.", minimum=0
    )
    max_nodes: int = _key(
        0, "Most nodes that all trainers together have at once; 0 is no limit.", minimum=0, tunable=True
    )
    max_share: float = _key(
        1.0,
        "Most of the partition's nodes that all trainers together have at once, 0.25 for a quarter.",
        minimum=0.0,
        maximum=1.0,
        tunable=True,
    )
    harvest_at: str = _key(
        "",
        "Days and hours of harvesting, on the clock of the daemon's host; empty is always.",
        example="Mon-Fri 20:00-07:00, Sat-Sun",
        check=hours.check,
    )
    stale_after_s: float = _key(10.0, "Nothing grows on a snapshot older than this.", unit="s", minimum=0.5)
    quarantine_s: float = _key(
        300.0, "Time for which a node with failing pilots is in quarantine.", unit="s", minimum=0.0
    )
    quarantine_after: int = _key(
        3, "Failing pilots of one user that put a node into quarantine; of two users one fewer, at least 2.", minimum=1
    )
    pilot_limit_s: float = _key(3600.0, "Longest time limit of a pilot; whole minutes.", unit="s", minimum=60.0)
    give_back_bound_s: float = _key(
        5.0, "A node asked back and not idle after this long raises an alarm.", unit="s", minimum=0.1
    )


@dataclass(frozen=True)
class DecideConfig:
    """The sharing of nodes among trainers."""

    RELOADED: ClassVar[bool] = True

    t_fwd_s: float = _key(
        120.0,
        "Forward-looking time T^fwd of the paper.",
        unit="s",
        minimum=0.1,
        maximum=30 * 86_400.0,
        tunable=True,
    )
    objective: str = _key(
        "efficiency",
        "Maximise efficiency (speed-up over one node), throughput (samples/s) or priority (weight x speed-up).",
        choices=("throughput", "efficiency", "priority"),
        tunable=True,
    )
    pj_max: int = _key(
        10,
        "Trainers considered at once; users take turns, and each user's trainers come first come first served.",
        minimum=1,
        maximum=1_000_000,
        tunable=True,
    )
    first_node_within_s: float = _key(
        60.0,
        "A user who has no node gets one within so long while the pool has more nodes than users, whatever the "
        "objective and pj_max say; 0 is no promise, and near-ties are not decided for trainers that wait.",
        unit="s",
        minimum=0.0,
        maximum=30 * 86_400.0,
    )
    resumes_at_once: int = _key(
        10,
        "Most suspended trainers that load their checkpoints at once, as after an outage; first those whose users "
        "have no node. 0 is no limit.",
        minimum=0,
    )
    solver: str = _key(
        "auto",
        "Solver of the allocation problem; others solve in its place where it cannot.",
        example="exact",
        tunable=True,
        check=_check_solver,
    )
    solve_time_limit_s: float = _key(1.0, "Longest time for one decision.", unit="s", minimum=0.01, maximum=60.0)


@dataclass(frozen=True)
class LimitsConfig:
    """Limits per user and account, in addition to Slurm's own."""

    RELOADED: ClassVar[bool] = True

    nodes_per_user: int = _key(0, "Most nodes of one user's trainers together; 0 is no limit.", minimum=0)
    nodes_per_account: int = _key(0, "Most nodes of one account's trainers together; 0 is no limit.", minimum=0)
    trainers_per_user: int = _key(3, "Most trainers of one user considered at once; 0 is no limit.", minimum=0)
    trainers_per_account: int = _key(0, "Most trainers of one account considered at once; 0 is no limit.", minimum=0)


@dataclass(frozen=True)
class PromiseConfig:
    """The site's promise to its regular jobs."""

    RELOADED: ClassVar[bool] = True

    delay_s_per_hour: float = _key(
        600.0,
        "Nothing new is lent while pilots have delayed regular jobs by more in the last hour, all of them together and "
        "the first second of each aside; 0 is no promise.",
        unit="s",
        minimum=0.0,
    )


@dataclass(frozen=True)
class ApiConfig:
    """The daemon's addresses for drivers and commands, and the authentication of callers."""

    socket: str = _key("/run/bftd/bftd.sock", "Unix socket for clients on this host.")
    tcp: str = _key("", "host:port for drivers on other hosts.", example="0.0.0.0:6820")
    auth: str = _key(
        "munge",
        "How TCP clients prove who they are: munge, or token (one shared secret, for a private test cluster only).",
        choices=("munge", "token"),
    )
    munge_socket: str = _key("", "Socket of munged; empty is munge's own default.", example="/run/munge/munge.socket.2")
    token_file: str = _key("", "File with the shared token, where auth is token.", example="/etc/bftd/token")


@dataclass(frozen=True)
class LedgerConfig:
    """The file that holds what must survive the daemon."""

    path: str = _key("/var/lib/bftd/ledger.sqlite", "SQLite file of the ledger, on a local disk.")
    max_bytes: int = _key(
        1_000_000_000,
        "About how large it may become: the oldest events go first, trainers, leases and usage never.",
        unit="bytes",
        minimum=10_000_000,
    )


@dataclass(frozen=True)
class ElasticConfig:
    """Settings of the site that trainers' drivers receive."""

    RELOADED: ClassVar[bool] = True

    container: str = _key(
        "",
        "How container=IMAGE starts: apptainer, charliecloud, pyxis, or a command with {image}, {binds} and {command}.",
        example="apptainer",
        check=containers.check,
    )
    stage: str = _key(
        "",
        "Folder on each node's own disk, where distributed checkpoints are written first; {user} stands for the user.",
        example="/local/scratch",
        check=_check_folder,
    )


@dataclass(frozen=True)
class WebConfig:
    """The address of the web page and of Prometheus's metrics, beside the unix socket."""

    listen: str = _key(
        "",
        "host:port of the web page and /metrics for this host; empty serves them on the unix socket alone.",
        example="127.0.0.1:6821",
    )
    token_file: str = _key(
        "", "File with the token that callers beyond localhost must show; empty refuses them.", example="/etc/bftd/web"
    )


@dataclass(frozen=True)
class NotifyConfig:
    """The command that is told of alarms."""

    RELOADED: ClassVar[bool] = True

    command: str = _key(
        "",
        "Command that is run with a JSON object on its standard input when an alarm begins or ends; empty is none.",
        example="/etc/bftd/notify",
    )
    every_s: float = _key(
        300.0,
        "Least time between two runs of the command; what happened meanwhile comes together.",
        unit="s",
        minimum=1.0,
    )


@dataclass(frozen=True)
class LogConfig:
    """The daemon's messages on standard error."""

    RELOADED: ClassVar[bool] = True

    level: str = _key("info", "Least severe messages shown.", choices=("debug", "info", "warning", "error"))


@dataclass(frozen=True)
class Config:
    """All settings of one daemon."""

    daemon: DaemonConfig = DaemonConfig()
    slurm: SlurmConfig = SlurmConfig()
    pool: PoolConfig = PoolConfig()
    decide: DecideConfig = DecideConfig()
    limits: LimitsConfig = LimitsConfig()
    promise: PromiseConfig = PromiseConfig()
    api: ApiConfig = ApiConfig()
    ledger: LedgerConfig = LedgerConfig()
    elastic: ElasticConfig = ElasticConfig()
    web: WebConfig = WebConfig()
    notify: NotifyConfig = NotifyConfig()
    log: LogConfig = LogConfig()


@dataclass(frozen=True)
class KeyDoc:
    """One key as the documentation shows it."""

    section: str
    name: str
    type: str
    default: Any
    unit: str
    doc: str
    example: Any


def reference() -> Iterator[KeyDoc]:
    """Yield every key of the configuration, in the order of the file."""
    for section in dataclasses.fields(Config):
        cls = cast("type[Any]", section.default.__class__)
        types = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            yield KeyDoc(
                section.name,
                field.name,
                types[field.name].__name__,
                field.default,
                field.metadata["unit"],
                field.metadata["doc"],
                field.metadata["example"],
            )


def reloaded() -> tuple[str, ...]:
    """Return the sections whose changes a reload applies; changes of the others need a restart."""
    return tuple(
        field.name for field in dataclasses.fields(Config) if getattr(_section_class(field), "RELOADED", False)
    )


def fixed() -> tuple[str, ...]:
    """Return the sections whose changes need a restart."""
    return tuple(field.name for field in dataclasses.fields(Config) if field.name not in reloaded())


@dataclass(frozen=True)
class TunableKey:
    """A key that `bft tune` changes while the daemon runs."""

    section: str
    name: str
    kind: type
    doc: str
    choices: tuple[str, ...]

    def checked(self, value: Any, where: str) -> Any:
        """Return the value as the core takes it; raises ConfigError with one line that begins with `where`."""
        field = next(field for field in dataclasses.fields(Config) if field.name == self.section)
        cls = _section_class(field)
        return checked(cls.__dataclass_fields__[self.name], self.kind, value, where)


def tunable() -> tuple[TunableKey, ...]:
    """Return every key that `bft tune` changes, in the order of the file."""
    found = []
    for section in dataclasses.fields(Config):
        cls = _section_class(section)
        types = typing.get_type_hints(cls)
        found += [
            TunableKey(section.name, key.name, types[key.name], key.metadata["doc"], key.metadata["choices"])
            for key in dataclasses.fields(cls)
            if key.metadata["tunable"]
        ]
    return tuple(found)


def value_of(config: Config, key: TunableKey) -> Any:
    """Return the value of a key in a configuration."""
    return getattr(getattr(config, key.section), key.name)


def _section_class(field: dataclasses.Field[Any]) -> type[Any]:
    return cast("type[Any]", field.default.__class__)
