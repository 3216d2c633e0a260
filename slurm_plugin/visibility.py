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
from slurm_plugin.site.model import HIDING, options, parse_config

# Both change by an administrator's hand only.
_LOOK_EVERY_S = 300.0
# What makes a user's trainers his own affair, as his jobs are.
_OF_USERS = frozenset({"jobs", "usage", "all"})
_OPERATORS = frozenset({"Operator", "Administrator"})
_UID = re.compile(r"\((\d+)\)$")


def hidden_from_us(client: SlurmClient) -> tuple[str, ...]:
    """Name what PrivateData hides from the user of this process; one RPC where that is nothing.

    Root, SlurmUser, and those to whom slurmdbd gives the operator level see everything. Where sacctmgr does not answer,
    the level is taken for none. Raises SlurmError when the configuration cannot be read.
    """
    return _hidden(client, _configuration(client))


def private_data(config: Mapping[str, str]) -> frozenset[str]:
    """The words of PrivateData: what Slurm keeps from ordinary users."""
    return frozenset(options(config.get("PrivateData", "").replace(" ", ",")))


def _configuration(client: SlurmClient) -> Mapping[str, str]:
    answer = client.run("scontrol", "show", "config")
    if answer.code != 0:
        raise SnapshotError(f"scontrol failed: {answer.complaint}")
    return parse_config(answer.out)


def _hidden(client: SlurmClient, config: Mapping[str, str]) -> tuple[str, ...]:
    words = HIDING & private_data(config)
    slurm_user = _UID.search(config.get("SlurmUser", ""))
    if not words or os.geteuid() == 0 or (slurm_user and os.geteuid() == int(slurm_user[1])):
        return ()
    return () if _level(client) in _OPERATORS else tuple(sorted(words))


class Visibility:
    """Asks from time to time whether Slurm hides something; `client` runs `scontrol show` and `sacctmgr show`."""

    def __init__(self, client: SlurmClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._seen_s = float("-inf")
        # Whether users' jobs are nobody else's business; until the configuration was read they are.
        self.keeps_jobs_private = True

    def check(self) -> None:
        """Raise SnapshotError while Slurm hides jobs, nodes, partitions or reservations of others from this user.

        A configuration that cannot be read is asked for again with the next call: a controller that is away gives no
        snapshot either.
        """
        if self._clock() - self._seen_s < _LOOK_EVERY_S:
            return
        try:
            config = _configuration(self._client)
            self.keeps_jobs_private = bool(private_data(config) & _OF_USERS)
            words = _hidden(self._client, config)
        except SlurmError:
            return
        if words:
            what = " and ".join(words)
            raise SnapshotError(
                f"Slurm hides {what} from {_name()} (PrivateData), and so what pilots must not get in the way of: "
                f"give {_name()} the operator level in slurmdbd, or take {what} out of PrivateData"
            )
        self._seen_s = self._clock()


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
