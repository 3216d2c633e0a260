"""All checks in their order, each within its time limit."""

from __future__ import annotations

from collections.abc import Iterator

from bftd import api_client, config_file
from bftd.base.errors import BftError
from bftd.config.keys import Config
from bftd.doctor import daemon, host
from bftd.doctor.check import Check, limited
from bftd.doctor.slurm import SlurmChecks
from bftd.protocol.address import is_path

# More than what each waits for itself: Slurm's commands time out on their own, and so does the daemon.
_LIMIT_S = 15.0


def examine(config_path: str | None = None, limit_s: float = _LIMIT_S) -> Iterator[Check]:
    """Yield the result of each check as it is found; no error is raised.

    `limit_s` is for each group of checks, beside the time-outs of Slurm's commands.
    """
    settings, read = _configuration(config_path)
    slurm = SlurmChecks(settings)
    slurm_s = limit_s + 3 * (settings.slurm.timeout_s + 2.0)
    yield from limited("training Python", host.programs, limit_s)
    yield read
    yield from limited("slurmctld", slurm.controller, slurm_s)
    yield from limited("munge", lambda: slurm.munge(over_tcp=_is_over_tcp(config_path)), limit_s)
    yield from limited("daemon", lambda: daemon.daemon(config_path), limit_s)
    yield from limited("site settings", slurm.site, slurm_s)
    yield from limited("driver partition", slurm.driver_partition, slurm_s)
    yield from limited("association", slurm.job_limits, slurm_s)
    yield from limited("service nodes", slurm.drivers_host, slurm_s)
    yield from limited("host name", host.own_name, limit_s)
    yield from limited("limits", host.limits, limit_s)
    yield from limited("disks", lambda: host.disks(settings), limit_s)


def _configuration(path: str | None) -> tuple[Config, Check]:
    found = config_file.find(path)
    try:
        settings = config_file.load_found(path)
    except BftError as error:
        return Config(), Check("configuration", "failure", f"{error}; the checks below take the defaults")
    seen = str(found) if found.exists() else f"no {found}: the defaults"
    return settings, Check("configuration", "ok", seen)


def _is_over_tcp(config_path: str | None) -> bool:
    try:
        found = api_client.find(config_path)
    except BftError:
        return False  # the check of the daemon tells it
    return not is_path(found.address) and found.proof == "munge"
