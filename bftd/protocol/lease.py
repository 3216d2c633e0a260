"""A lease as its driver sees it, and the common vocabulary of its states."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from bftd.protocol.bounds import COMMAND_LEAST_S, COMMAND_MOST_S, LEASE_ID_MOST
from bftd.protocol.fields import Fields
from bftd.protocol.sizes import Sizes

# A lease begins as granted. Its driver places a pilot, which is ready once it is warm, works once it takes part in
# training, and leaves when Slurm asks it to; or the pilot was refused. The daemon may revoke it at any time.
LeaseState = Literal["granted", "placed", "ready", "working", "leaving", "revoked", "refused", "ended"]
# The states of a lease that has not ended, by how far its driver has come with it.
Phase = Literal["granted", "placed", "ready", "working", "leaving"]
# The states that the daemon lists.
Listed = Literal["granted", "revoked"]
# The states that a driver reports.
REPORTED: tuple[LeaseState, ...] = ("placed", "refused", "ready", "working", "leaving", "ended")
_LISTED: tuple[Listed, ...] = ("granted", "revoked")

LEASE_ID = re.compile(rf"(?=.{{1,{LEASE_ID_MOST}}}$)[^\s/]{{1,256}}\.\d{{1,18}}")
LEASE_ID_FORM = "a lease id, <node>.<number>"
# The word by which a pilot's comment names its daemon.
_DAEMON = re.compile(r"[A-Za-z0-9-]{1,64}")
# A folder that every node has for itself.
_FOLDER = re.compile(r"(?!.*/\.\.(/|$))/.*")
_FOLDER_MOST = 1024


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One lease in the daemon's list: a task for its driver.

    A `revoked` lease has to be given back, at once if `vacate` is set. `limit_s` is the pilot's time limit in seconds;
    `gres` asks for the node's GPUs as Slurm writes them, and `gpus` counts them. `partition` is the pilot's, or "" if
    the driver knows the only one. `reason` is a sentence. A lease that is revoked in order may take until `leave_in_s`
    seconds after the list was sent: nobody needs the node before. An older daemon does not send it.
    """

    id: str
    node: str
    state: Listed
    vacate: bool
    limit_s: float
    gres: str = ""
    gpus: int = 0
    reason: str = ""
    partition: str = ""
    leave_in_s: float | None = None

    @property
    def revoked(self) -> bool:
        """Whether the driver has to give the node back."""
        return self.state == "revoked"

    def to_json(self) -> dict[str, Any]:
        """Return the object that `from_json` reads."""
        shown = ((name, getattr(self, name)) for name in _VIEW)
        return {name: value for name, value in shown if name not in _MAY_LACK or value != _MAY_LACK[name]}

    @classmethod
    def from_json(cls, data: object) -> LeaseView:
        """Read one item of the daemon's list; raises Malformed."""
        fields = Fields(data, "lease")
        id_ = fields.name("id", most=LEASE_ID_MOST, form=LEASE_ID, wanted=LEASE_ID_FORM)
        return cls(
            id=id_,
            node=fields.name("node"),
            state=fields.text("state", choices=_LISTED),
            vacate=fields.flag("vacate"),
            limit_s=fields.number("limit_s"),
            gres=fields.text("gres", ""),
            gpus=fields.whole("gpus", 0),
            reason=fields.text("reason", ""),
            partition=fields.name("partition", ""),
            leave_in_s=fields.number("leave_in_s", None),
        )


# Fields that are left out if they have this value.
_MAY_LACK: Mapping[str, object] = {"partition": "", "leave_in_s": None}
# Drivers of a bftd without `looked_s` understand no list that lacks this. They keep pilots away from a job without a
# plan for this long after they first saw it themselves: long enough for the daemon to see the job too.
_OLDER_DRIVERS = {"plan_wait_s": 3.0}

_VIEW = tuple(field.name for field in fields(LeaseView))


@dataclass(frozen=True, slots=True)
class Leases:
    """All leases of one trainer as the daemon has them, and the rules of the site that go with them.

    `version` counts the changes of the list. `min_window_s` is the site's key for how soon a plan keeps a node free. It
    comes with every list, because a driver registers once and a reload may change it at any time. `daemon` is the word
    by which the pilots name the daemon that they run for. `timeout_s` is the time after which a Slurm command has
    failed at this site. `now_s` is when the list was sent, by the daemon's clock: Slurm's plans are in its controller's
    time, and a driver's host may have another clock. By the same clock, `looked_s` is when the last look at Slurm began
    that the daemon had taken in by then, 0 if there was none yet. A job submitted until `calm_s` is seen in time for
    the next backfill cycle; 0 if that is not known. `stage` is the folder of the site's key of that name, "" for none.
    `container` is how the site starts a command in a user's image (bftd.protocol.container), "" if it does not.
    `sizes` are the numbers of nodes that the trainer may have by now: its user can change them, and there may be fewer
    nodes. An older daemon sends none of the eight.
    """

    version: int
    min_window_s: float
    leases: tuple[LeaseView, ...]
    daemon: str = ""
    timeout_s: float | None = None
    now_s: float | None = None
    looked_s: float | None = None
    calm_s: float | None = None
    container: str = ""
    stage: str = ""
    sizes: Sizes | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object that `from_json` reads, with the field that drivers from before `looked_s` need."""
        return {
            "version": self.version,
            **_OLDER_DRIVERS,
            "min_window_s": self.min_window_s,
            "leases": [lease.to_json() for lease in self.leases],
            "daemon": self.daemon,
            "timeout_s": self.timeout_s,
            "now_s": self.now_s,
            "looked_s": self.looked_s,
            "calm_s": self.calm_s,
            "container": self.container,
            "stage": self.stage,
            **(self.sizes.to_fields() if self.sizes else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Leases:
        """Read the daemon's answer to a driver that asks for its leases; raises Malformed."""
        fields = Fields(data, "leases")
        listed = fields.raw("leases")
        if not isinstance(listed, list):
            raise fields.wrong("leases", "a list")
        return cls(
            version=fields.whole("version"),
            min_window_s=fields.number("min_window_s"),
            leases=tuple(map(LeaseView.from_json, listed)),
            daemon=fields.name("daemon", "", form=_DAEMON, wanted="a word") if fields.raw("daemon") else "",
            timeout_s=fields.number("timeout_s", None, COMMAND_LEAST_S, COMMAND_MOST_S),
            now_s=fields.number("now_s", None),
            looked_s=fields.number("looked_s", None),
            calm_s=fields.number("calm_s", None),
            container=fields.text("container", ""),
            stage=fields.name("stage", "", most=_FOLDER_MOST, form=_FOLDER, wanted="a folder from / on")
            if fields.raw("stage")
            else "",
            sizes=Sizes.read(fields) if fields.has("nodes_min") else None,
        )
