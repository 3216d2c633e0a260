"""The check of the live cluster, at bftd's start and then every minute.

It covers whether regular jobs may preempt pilots, and whether this host's Slurm loads the SPANK plug-in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SnapshotError
from slurm_plugin.pilots.preemptible import objection
from slurm_plugin.read.parse import partition_options
from slurm_plugin.read.settings import parse_config
from slurm_plugin.site import plugstack

# Only an administrator changes these settings, and soon sees the effect of a correction.
_LOOK_EVERY_S = 60.0
_LOOK_AGAIN_S = 10.0
UNREAD = "whether regular jobs may preempt pilots could not be read from Slurm yet"


class Preemption:
    """A repeated check that the partitions `harvested` may be harvested; `client` runs `scontrol show`.

    `objection` is the reason why they may not, in one line, or "". It is `UNREAD` until Slurm has answered once, and
    keeps its value while Slurm does not answer. `cluster` identifies the cluster, "" until then. `plugin_fault` says
    why this host's commands print an error for the SPANK plug-in, "" if they do not, or if that cannot be read.
    """

    def __init__(
        self, client: SlurmClient, harvested: Collection[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.objection = UNREAD
        self.cluster = self.plugin_fault = ""
        self._client = client
        self._harvested = tuple(harvested)
        self._clock = clock
        self._seen_s = float("-inf")

    @property
    def known(self) -> bool:
        """Whether Slurm has answered."""
        return self.objection != UNREAD

    def check(self) -> None:
        """Look again when it is time to; raise SlurmError if Slurm does not answer."""
        every_s = _LOOK_AGAIN_S if self.objection else _LOOK_EVERY_S
        if self.known and self._clock() - self._seen_s < every_s:
            return
        partitions = partition_options(self._show("partition", "-o", "--all", "--local"))
        if not partitions:
            raise SnapshotError("scontrol shows no partition at all")
        config = parse_config(self._show("config"))
        place = (config.get(key, "") for key in ("ClusterName", "SlurmctldHost[0]", "SlurmctldPort"))
        self.cluster = " ".join(place)
        self.objection = objection(config, partitions, self._harvested)
        self.plugin_fault = plugstack.fault(plugstack.read(config), config.get("PluginDir", ""))
        self._seen_s = self._clock()

    def _show(self, *what: str) -> str:
        answer = self._client.run("scontrol", "show", *what)
        if answer.code != 0 or not answer.out:
            raise SnapshotError(f"scontrol failed: {answer.complaint}")
        return answer.out
