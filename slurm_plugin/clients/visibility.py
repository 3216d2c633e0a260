"""The check that Slurm shows this user everything: with PrivateData in slurm.conf it silently omits others' jobs.

Omitted jobs look like a quiet cluster, so the setting and the user's rights are looked up.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Callable, Mapping

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SlurmError, SnapshotError
from slurm_plugin.read.settings import options, parse_config

HIDING = frozenset({"jobs", "nodes", "partitions", "reservations"})
"""Words of PrivateData that hide from a user what bftd and drivers have to see."""

# Only an administrator changes either.
_LOOK_EVERY_S = 300.0
_LOOK_AGAIN_S = 15.0  # while the due look fails
_BELIEVED_S = 900.0  # the greatest age of the last good look meanwhile
# Words of PrivateData that make a user's trainers as private as their jobs.
_OF_USERS = frozenset({"jobs", "usage", "all"})
_OPERATORS = frozenset({"Operator", "Administrator"})
_UID = re.compile(r"\((\d+)\)$")


def hidden_from_us(client: SlurmClient, config: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Name what PrivateData hides from the user of this process; one RPC if that is nothing, and none for root.

    Root, SlurmUser, and users with the operator level in slurmdbd see everything. If sacctmgr does not answer, the user
    counts as having no level. `config` is the configuration if it was read already. Raise SlurmError if it cannot be
    read.
    """
    if os.geteuid() == 0:
        return ()
    config = _configuration(client) if config is None else config
    words = HIDING & private_data(config)
    slurm_user = _UID.search(config.get("SlurmUser", ""))
    if not words or (slurm_user and os.geteuid() == int(slurm_user[1])):
        return ()
    return () if _level(client) in _OPERATORS else tuple(sorted(words))


def private_data(config: Mapping[str, str]) -> frozenset[str]:
    """Return the words of PrivateData, which name what Slurm hides from ordinary users."""
    return frozenset(options(config.get("PrivateData", "").replace(" ", ",")))


def _configuration(client: SlurmClient) -> Mapping[str, str]:
    answer = client.run("scontrol", "show", "config")
    if answer.code != 0:
        raise SnapshotError(f"scontrol failed: {answer.complaint}")
    config = parse_config(answer.out)
    if "PrivateData" not in config:
        raise SnapshotError("scontrol does not show PrivateData: is slurmctld up?")
    return config


class Visibility:
    """A repeated check whether Slurm hides something; `client` runs `scontrol show` and `sacctmgr show`."""

    def __init__(self, client: SlurmClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._seen_s = float("-inf")
        self._tried_s = float("-inf")
        # Whether users' jobs are private; assumed until the configuration was read.
        self.keeps_jobs_private = True

    def check(self) -> None:
        """Raise SnapshotError while Slurm hides jobs, nodes, partitions or reservations of others from this user.

        It is also raised until the configuration was read once. If it cannot be read later, the last reading is trusted
        for a while.
        """
        now_s = self._clock()
        age_s = now_s - self._seen_s
        believed = os.geteuid() == 0 or age_s < _BELIEVED_S  # nothing is hidden from root
        if age_s < _LOOK_EVERY_S or (believed and now_s - self._tried_s < _LOOK_AGAIN_S):
            return
        self._tried_s = now_s
        try:
            config = _configuration(self._client)
            words = hidden_from_us(self._client, config)
        except SlurmError as error:
            if believed:
                return
            raise SnapshotError(f"it cannot be told whether Slurm hides anything (PrivateData): {error}") from error
        self.keeps_jobs_private = bool(private_data(config) & _OF_USERS)
        if words:
            self._seen_s = float("-inf")
            what = " and ".join(words)
            raise SnapshotError(
                f"Slurm hides {what} from {_name()} (PrivateData), and so what pilots must not get in the way of: "
                f"give {_name()} the operator level in slurmdbd, or take {what} out of PrivateData"
            )
        self._seen_s = now_s


def _level(client: SlurmClient) -> str:
    try:
        answer = client.run("sacctmgr", "show", "user", f"name={_name()}", "format=adminlevel", "-n", "-P")
    except SlurmError:
        return ""
    return answer.out.strip() if answer.code == 0 else ""


def _name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
