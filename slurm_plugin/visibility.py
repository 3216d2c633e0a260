"""Whether Slurm shows this user all there is: with PrivateData in slurm.conf it silently leaves out others' jobs.

What is left out cannot be told from a quiet cluster, so it is looked up: the setting, and the user's rights.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Callable, Mapping

from slurm_plugin.client import SlurmClient
from slurm_plugin.errors import SlurmError, SnapshotError
from slurm_plugin.settings import options, parse_config

HIDING = frozenset({"jobs", "nodes", "partitions", "reservations"})
"""Words of PrivateData that keep from a user what bftd and drivers have to see."""

# Both change by an administrator's hand only.
_LOOK_EVERY_S = 300.0
_LOOK_AGAIN_S = 15.0  # while the look that is due fails
_BELIEVED_S = 900.0  # how old the last look may get by that
# What makes a user's trainers his own affair, as his jobs are.
_OF_USERS = frozenset({"jobs", "usage", "all"})
_OPERATORS = frozenset({"Operator", "Administrator"})
_UID = re.compile(r"\((\d+)\)$")


def hidden_from_us(client: SlurmClient, config: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Name what PrivateData hides from the user of this process; one RPC where that is nothing, and none for root.

    Root, SlurmUser, and those to whom slurmdbd gives the operator level see everything. Where sacctmgr does not answer,
    the level is taken for none. Raises SlurmError when the configuration, `config` where it was read already, cannot
    be read.
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
    """The words of PrivateData: what Slurm keeps from ordinary users."""
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
    """Asks from time to time whether Slurm hides something; `client` runs `scontrol show` and `sacctmgr show`."""

    def __init__(self, client: SlurmClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._seen_s = float("-inf")
        self._tried_s = float("-inf")
        # Whether users' jobs are nobody else's business; until the configuration was read they are.
        self.keeps_jobs_private = True

    def check(self) -> None:
        """Raise SnapshotError while Slurm hides jobs, nodes, partitions or reservations of others from this user.

        Also raised until the configuration was read once. When it cannot be read later, what was read before is
        believed for a while.
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
