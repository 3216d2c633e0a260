"""The configuration: one definition of every key, from which parsing, checks and documentation are made.

Each section is a frozen dataclass and each key a field with its default, unit, one line of documentation and an
example. Nothing else in the project knows a key's name, type or default.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bftd.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PATH = Path("/etc/bftd/bftd.toml")
PATH_VARIABLE = "BFTD_CONFIG"


def _key(
    default: Any,
    doc: str,
    *,
    unit: str = "",
    example: Any = None,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """A dataclass field that carries all that is known about one key."""
    metadata = {
        "doc": doc,
        "unit": unit,
        "example": default if example is None else example,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class DaemonConfig:
    """What the daemon is, and who may steer it."""

    mode: str = _key(
        "live",
        "live, or shadow: decide and log, with imaginary trainers on the real cluster, and touch nothing.",
        choices=("live", "shadow"),
    )
    shadow_trainers: int = _key(
        10, "Imaginary trainers that compete for nodes in shadow mode.", minimum=1, maximum=1000
    )
    user: str = _key(
        "bftd", "Unix user the daemon runs as, or its uid; clients on other hosts believe no other but root."
    )
    administrators: str = _key(
        "",
        "Unix group whose members may act on all trainers and tune the daemon; empty is nobody but root.",
        example="bftadmin",
    )


@dataclass(frozen=True)
class SlurmConfig:
    """How Slurm is read and which partitions are used."""

    conf: str = _key("", "Path of slurm.conf; empty leaves the choice to Slurm.", example="/etc/slurm/slurm.conf")
    poll_s: float = _key(1.0, "Time between two snapshots.", unit="s", minimum=0.1, maximum=60.0)
    timeout_s: float = _key(5.0, "A Slurm command that takes longer has failed.", unit="s", minimum=0.5, maximum=60.0)
    backend: str = _key(
        "text",
        "How snapshots are read: text (Slurm's commands) or pyslurm (of this Slurm release, installed by the site).",
        choices=("text", "pyslurm"),
    )
    partition: str = _key("elastic", "Preemptible partition whose idle nodes are harvested.")
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


@dataclass(frozen=True)
class PoolConfig:
    """Which idle nodes are offered to trainers, and when they are given back."""

    debounce_polls: int = _key(2, "Polls for which a node must be idle before it is offered.", minimum=1, maximum=100)
    min_window_s: float = _key(20.0, "A node planned sooner than this is not offered.", unit="s", minimum=0.0)
    vacate_ahead_s: float = _key(
        5.0, "Pilots leave a node this long before a regular job is planned to start on it.", unit="s", minimum=0.0
    )
    plan_wait_s: float = _key(
        30.0, "Longest time for which one pending job without a plan stops growing.", unit="s", minimum=0.0
    )
    spare_nodes: int = _key(
        0, "Idle nodes that stay free for regular jobs while any of them waits for room; 0 lends all.", minimum=0
    )
    stale_after_s: float = _key(10.0, "Nothing grows on a snapshot older than this.", unit="s", minimum=0.5)
    quarantine_s: float = _key(300.0, "Time for which a node with failing pilots is left alone.", unit="s", minimum=0.0)
    quarantine_after: int = _key(3, "Failing pilots that put a node into quarantine.", minimum=1)
    pilot_limit_s: float = _key(3600.0, "Longest time limit of a pilot; whole minutes.", unit="s", minimum=60.0)
    give_back_bound_s: float = _key(
        5.0, "A node asked back and not idle after this long raises an alarm.", unit="s", minimum=0.1
    )


@dataclass(frozen=True)
class DecideConfig:
    """How nodes are shared among trainers."""

    t_fwd_s: float = _key(120.0, "Forward-looking time T^fwd of the paper.", unit="s", minimum=0.1)
    objective: str = _key(
        "throughput",
        "Maximise throughput (samples/s), efficiency (speed-up over one node) or priority (weight x speed-up).",
        choices=("throughput", "efficiency", "priority"),
    )
    pj_max: int = _key(10, "Trainers considered at once, first come first served.", minimum=1)
    solver: str = _key("auto", "Solver of the allocation problem.", example="exact")
    solve_time_limit_s: float = _key(1.0, "Longest time for one decision.", unit="s", minimum=0.01, maximum=60.0)


@dataclass(frozen=True)
class LimitsConfig:
    """What one user or one account may have at once, beside Slurm's own limits."""

    nodes_per_user: int = _key(0, "Most nodes of one user's trainers together; 0 is no limit.", minimum=0)
    nodes_per_account: int = _key(0, "Most nodes of one account's trainers together; 0 is no limit.", minimum=0)
    trainers_per_user: int = _key(0, "Most trainers of one user considered at once; 0 is no limit.", minimum=0)
    trainers_per_account: int = _key(0, "Most trainers of one account considered at once; 0 is no limit.", minimum=0)


@dataclass(frozen=True)
class ApiConfig:
    """Where drivers and commands reach the daemon, and how it knows who they are."""

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
    """Where the daemon keeps what must survive it."""

    path: str = _key("/var/lib/bftd/ledger.sqlite", "SQLite file of the ledger.")


@dataclass(frozen=True)
class LogConfig:
    """What the daemon writes to its standard error."""

    level: str = _key("info", "Least severe messages shown.", choices=("debug", "info", "warning", "error"))


@dataclass(frozen=True)
class Config:
    """All settings of one daemon."""

    daemon: DaemonConfig = DaemonConfig()
    slurm: SlurmConfig = SlurmConfig()
    pool: PoolConfig = PoolConfig()
    decide: DecideConfig = DecideConfig()
    limits: LimitsConfig = LimitsConfig()
    api: ApiConfig = ApiConfig()
    ledger: LedgerConfig = LedgerConfig()
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
    """Every key of the configuration, in the order of the file."""
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


def find(path: str | os.PathLike[str] | None = None) -> Path:
    """The configuration file to read: `path`, else $BFTD_CONFIG, else /etc/bftd/bftd.toml."""
    return Path(path or os.environ.get(PATH_VARIABLE) or DEFAULT_PATH)


def load_found(path: str | os.PathLike[str] | None = None) -> Config:
    """The configuration of this host: the file that `find` names, or the defaults where nobody named one and none is.

    A file that was named, by `path` or $BFTD_CONFIG, must be there.
    """
    found = find(path)
    named = bool(path or os.environ.get(PATH_VARIABLE))
    return load(found) if named or found.exists() else Config()


def load(path: str | os.PathLike[str]) -> Config:
    """Read and check one TOML file; raises ConfigError with one line that names the file and the key."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read the configuration {path}: {reason}; name one with --config") from None
    return parse(text, str(path))


def parse(text: str, name: str = "configuration") -> Config:
    """Check TOML `text` against the definition; `name` stands in front of every message."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from None
    sections = {field.name: field.default for field in dataclasses.fields(Config)}
    values: dict[str, Any] = {}
    for section, content in table.items():
        if section not in sections:
            raise ConfigError(f"{name}: unknown section [{section}]{_nearest(section, sections)}")
        if not isinstance(content, Mapping):
            raise ConfigError(f"{name}: {section} must be a section: write [{section}]")
        values[section] = _section(sections[section].__class__, section, content, name)
    config = Config(**values)
    if config.api.tcp and config.api.auth == "token" and not config.api.token_file:
        raise ConfigError(
            f'{name}: [api] auth = "token" needs token_file, the file with the token that TCP clients show'
        )
    return config


def to_toml(config: Config) -> str:
    """The whole configuration as commented TOML, which `parse` reads back to the same values."""
    lines: list[str] = []
    section = ""
    for key in reference():
        if key.section != section:
            lines += ["" if section else "# bftd configuration", f"[{key.section}]"]
            section = key.section
        unit = f" ({key.unit})" if key.unit else ""
        lines.append(f"# {key.doc}{unit}")
        lines.append(f"{key.name} = {json.dumps(getattr(getattr(config, section), key.name))}")
    return "\n".join(lines) + "\n"


def _section(cls: type, section: str, content: Mapping[str, Any], name: str) -> Any:
    types = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values = {}
    for key, value in content.items():
        if key not in fields:
            raise ConfigError(f"{name}: unknown key {key} in [{section}]{_nearest(key, fields)}")
        values[key] = _value(fields[key], types[key], value, f"{name}: [{section}] {key}")
    return cls(**values)


def _value(field: dataclasses.Field[Any], kind: type, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        wanted = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false"}[kind.__name__]
        raise ConfigError(
            f"{where} must be {wanted}, not {value!r}; for example {json.dumps(field.metadata['example'])}"
        )
    choices = cast("tuple[str, ...]", field.metadata["choices"])
    if choices and value not in choices:
        raise ConfigError(f"{where} must be one of {', '.join(choices)}, not {value!r}")
    low, high = field.metadata["minimum"], field.metadata["maximum"]
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} must be a finite number, not {value}")
    if low is not None and value < low:
        raise ConfigError(f"{where} must be at least {low}, not {value}")
    if high is not None and value > high:
        raise ConfigError(f"{where} must be at most {high}, not {value}")
    return value


def _nearest(word: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
