"""Slurm's own settings as `scontrol show config` prints them, and the contents of its lists of options."""

from __future__ import annotations

import re

from slurm_plugin.errors import SnapshotError

_SETTING = re.compile(r"(\S+)\s*=\s?(.*)$")
_FIRST_LINE = "Configuration data as of"
_LAST_KEYS = ("SLURM_CONF", "SLURM_VERSION", "UnkillableStepTimeout")  # an answer that is cut short lacks one of them
_NUMBER = re.compile(r"-?\d{1,18}(?!\d)")
_NOTHING = frozenset({"", "(null)", "none", "n/a"})


class Shown(dict[str, str]):
    """Texts that Slurm shows, by key; SnapshotError for a key that it does not show."""

    def __missing__(self, key: str) -> str:
        raise SnapshotError(f"scontrol does not show {key}: is this a release of Slurm that bftd does not know?")


def parse_config(text: str) -> Shown:
    """Read the first part of `scontrol show config`, which is slurm.conf; raise SnapshotError if it is incomplete."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith(_FIRST_LINE):
        raise SnapshotError("scontrol does not show the configuration: is slurmctld up?")
    settings = Shown()
    for line in lines[1:]:
        if not line.strip():
            break
        if match := _SETTING.match(line):
            settings[match[1]] = match[2].strip()
    if any(key not in settings for key in _LAST_KEYS):
        raise SnapshotError("scontrol's answer about the configuration is cut short: run the command again")
    return settings


def options(text: str) -> dict[str, str]:
    """Split a list such as "bf_continue,bf_interval=1" into names and values."""
    if is_nothing(text):
        return {}
    words = (word.strip() for word in text.split(","))
    return {name: value for name, _, value in (word.partition("=") for word in words if word)}


def is_nothing(text: str) -> bool:
    """Whether Slurm's text for a setting means that it is not set."""
    return text.strip().lower() in _NOTHING


def number(text: str) -> int | None:
    """Return the number a text such as "30 sec" starts with; None without one, or if it has more than 18 digits."""
    found = _NUMBER.match(text)
    return int(found[0]) if found else None
