"""The configuration file: finds, reads and checks it against `bftd.config.keys`, and writes it with its texts."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bftd.base import old_names
from bftd.base.errors import ConfigError
from bftd.config.fields import checked
from bftd.config.keys import Config, reference

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PATH = Path("/etc/bftd/bftd.toml")
PATH_VARIABLE = "BFTD_CONFIG"
# Removed keys, each with a sentence about its replacement: a file that still names one keeps working.
GONE: Mapping[tuple[str, str], str] = {
    ("pool", "plan_wait_s"): "no waiting job stops growth any more: nodes are earmarked for those that can start",
}


def find(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of the configuration file: `path`, else $BFTD_CONFIG, else /etc/bftd/bftd.toml."""
    return Path(path or os.environ.get(PATH_VARIABLE) or DEFAULT_PATH)


def load_found(path: str | os.PathLike[str] | None = None) -> Config:
    """Return this host's configuration: the file that `find` returns, or the defaults where that file is absent.

    A file that `path` or $BFTD_CONFIG names must exist.
    """
    found = find(path)
    named = bool(path or os.environ.get(PATH_VARIABLE))
    return load(found) if named or found.exists() else Config()


def load(path: str | os.PathLike[str], log: Callable[[str], None] = lambda line: None) -> Config:
    """Read and check one TOML file; raises ConfigError with one line that names the file and the key.

    `log` is called with a line about each key that no longer has a meaning, or has another name.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read the configuration {path}: {reason}; name one with --config") from None
    return parse(text, str(path), log)


def parse(text: str, name: str = "configuration", log: Callable[[str], None] = lambda line: None) -> Config:
    """Check TOML `text` against the definition; every error, and every line for `log`, begins with `name`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from None
    except ValueError:  # tomllib lets Python's limit on the digits of an integer through
        raise ConfigError(f"{name}: not valid TOML: an integer has thousands of digits") from None
    except RecursionError:
        raise ConfigError(f"{name}: not valid TOML: it is nested too deeply") from None
    sections = {field.name: field.default for field in dataclasses.fields(Config)}
    values: dict[str, Any] = {}
    for section, content in table.items():
        if section not in sections:
            raise ConfigError(f"{name}: unknown section [{section}]{_nearest(section, sections)}")
        if not isinstance(content, Mapping):
            raise ConfigError(f"{name}: {section} must be a section: write [{section}]")
        values[section] = _section(sections[section].__class__, section, content, name, log)
    config = Config(**values)
    if partitions := config.slurm.partitions:
        alone = config.slurm.partition
        if "partition" in table["slurm"] and alone not in partitions:
            raise ConfigError(f"{name}: [slurm] partition {alone} is none of partitions: give one of the two keys")
        config = dataclasses.replace(config, slurm=dataclasses.replace(config.slurm, partition=partitions[0]))
    _check_together(config, name)
    host, _, port = config.api.tcp.rpartition(":")
    if config.api.tcp and not (host and _is_port(port)):
        raise ConfigError(f"{name}: [api] tcp must be host:port, such as 0.0.0.0:6820, not {config.api.tcp!r}")
    _check_web(config, name)
    if config.api.tcp and config.api.auth == "token" and not config.api.token_file:
        raise ConfigError(
            f'{name}: [api] auth = "token" needs token_file, the file with the token that TCP clients show'
        )
    return config


def _check_together(config: Config, name: str) -> None:
    """Refuse keys that are each valid but contradict one another."""
    slurm, pool = config.slurm, config.pool
    if pool.stale_after_s < 2.0 * slurm.poll_s:
        raise ConfigError(
            f"{name}: [pool] stale_after_s must be at least twice [slurm] poll_s ({slurm.poll_s:g}), not "
            f"{pool.stale_after_s:g}: each snapshot would be too old to grow on before the next one"
        )
    if 0.0 < pool.vacate_ahead_s < slurm.poll_s:
        raise ConfigError(
            f"{name}: [pool] vacate_ahead_s must be 0 or at least [slurm] poll_s ({slurm.poll_s:g}), not "
            f"{pool.vacate_ahead_s:g}: a job would start between two polls, and find its nodes not vacated"
        )
    if 0.0 < pool.min_window_s < pool.vacate_ahead_s:
        raise ConfigError(
            f"{name}: [pool] min_window_s must be 0 or at least vacate_ahead_s ({pool.vacate_ahead_s:g}), not "
            f"{pool.min_window_s:g}: nodes would be lent that have to be vacated at once"
        )
    if config.decide.solve_time_limit_s > pool.stale_after_s:
        raise ConfigError(
            f"{name}: [decide] solve_time_limit_s must be at most [pool] stale_after_s ({pool.stale_after_s:g}), not "
            f"{config.decide.solve_time_limit_s:g}: a plan would be of a pool that is too old"
        )
    if slurm.driver_partition in slurm.harvested:
        raise ConfigError(
            f"{name}: [slurm] driver_partition must be another than partition ({slurm.driver_partition}): drivers must "
            "not be preempted"
        )


def _check_web(config: Config, name: str) -> None:
    """Refuse an invalid address of the web page, or one that is the API's."""
    listen, (host, _, port) = config.web.listen, config.web.listen.rpartition(":")
    if not listen:
        return
    if not (host and _is_port(port) and int(port)):
        raise ConfigError(f"{name}: [web] listen must be host:port, such as 127.0.0.1:6821, not {listen!r}")
    if listen == config.api.tcp:
        raise ConfigError(f"{name}: [web] listen and [api] tcp are both {listen}: give the page a port of its own")


def _is_port(text: str) -> bool:
    return re.fullmatch("[0-9]{1,5}", text) is not None and int(text) < 65536


def to_toml(config: Config) -> str:
    """Return the whole configuration as commented TOML, which `parse` reads back to the same values."""
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


def _section(cls: type, section: str, content: Mapping[str, Any], name: str, log: Callable[[str], None]) -> Any:
    types = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values = {}
    for key, value in content.items():
        if gone := GONE.get((section, key)):
            log(f"{name}: [{section}] {key} is gone and means nothing, take it out: {gone}")
            continue
        new = old_names.KEYS.get((section, key), key)
        if new != key:
            if new in content:
                raise ConfigError(f"{name}: [{section}] {key} is the old name of {new}: give {new} alone")
            log(f"{name}: [{section}] {key} is the old name of {new} and understood until bftd 1.1: call it {new}")
        if new not in fields:
            raise ConfigError(f"{name}: unknown key {key} in [{section}]{_nearest(key, fields)}")
        values[new] = checked(fields[new], types[new], value, f"{name}: [{section}] {key}")
    return cls(**values)


def _nearest(word: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
