"""The settings that the core decides by: those of the configuration, replaced by those of `bft tune`."""

from __future__ import annotations

import grp
import logging
from collections.abc import Mapping
from typing import Any

from bftd.base.errors import ConfigError
from bftd.config import keys
from bftd.config.hours import UTC, Zone
from bftd.config.keys import Config
from bftd.core.model.domain import Settings

log = logging.getLogger("bftd")


def settings_of(config: Config, zone: Zone = UTC) -> Settings:
    """Return the core's settings from the configuration file."""
    return Settings(
        config.decide,
        config.limits,
        config.pool,
        config.slurm,
        _administrators(config.daemon.administrators),
        zone,
        promise=config.promise,
    )


def _administrators(group: str) -> frozenset[str]:
    """Return root and the listed members of a Unix group, who may have their own jobs in the harvested partition."""
    try:
        members = grp.getgrnam(group).gr_mem if group else []
    except KeyError:
        members = []
    return frozenset({"root", *members})


def still_good(tuned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `bft tune` that this bftd accepts: another version may have stored them."""
    known = {key.name: key for key in keys.tunable()}
    good = {}
    for name, value in tuned.items():
        if name not in known:
            log.warning("dropping what bft tune has set: %r cannot be tuned", name)
            continue
        try:
            good[name] = known[name].checked(value, name)
        except ConfigError as error:
            log.warning("dropping what bft tune has set: %s", error)
    return good
