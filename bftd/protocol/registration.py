"""A driver's registration of its trainer, and the daemon's answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bftd.protocol import curves
from bftd.protocol.bounds import (
    CLASSES_MOST,
    HELD_MOST,
    HELD_PER_NODE_MOST,
    LEASE_ID_MOST,
    NODES_MOST,
    TRAINER_ID_MOST,
    VERSION,
    WEIGHT_MOST,
)
from bftd.protocol.curves import CurveEstimate, Points
from bftd.protocol.fields import Fields
from bftd.protocol.lease import LEASE_ID, LEASE_ID_FORM, Leases
from bftd.protocol.requirements import Requirements
from bftd.protocol.sizes import Sizes

_PATH_MOST = 4_096
# The id stands in URLs and in lease lists.
_TRAINER_ID = re.compile(rf"[A-Za-z0-9._+-]{{1,{TRAINER_ID_MOST}}}")


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that a registering driver still holds; `job_id` is its pilot's."""

    id: str
    node: str
    job_id: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the object that `from_json` reads."""
        return {"id": self.id, "node": self.node, "job_id": self.job_id}

    @classmethod
    def from_json(cls, data: object) -> Held:
        """Read one item of a registration's list; raises Malformed."""
        fields = Fields(data, "trainer: held")
        id_ = fields.name("id", most=LEASE_ID_MOST, form=LEASE_ID, wanted=LEASE_ID_FORM)
        return cls(id_, fields.name("node", id_.rpartition(".")[0]), fields.name("job_id", None))


@dataclass(frozen=True, slots=True)
class Registration:
    """A driver's description of its trainer, and the leases that it holds.

    `curve` is what the user knows about its scaling, `up_cost_s` and `down_cost_s` about its resizes (R_j^up and R_j^dw
    of the paper), `warm_up_s` about the time from a node's grant to its first step; None means not known. `user` is ""
    if the daemon is to fill in the caller, and `partition` is "" if any that it harvests will do. `estimates` are the
    estimates of its speed so far. `log` is the file that the job's output goes to, "" if it goes to a terminal. The
    driver of a `resizable` trainer goes by the numbers of nodes that come with its leases.
    """

    id: str
    name: str
    backend: str
    sizes: Sizes
    user: str = ""
    partition: str = ""
    weight: float = 1.0
    workers_per_node: int | None = None
    curve: Points = ()
    up_cost_s: float | None = None
    down_cost_s: float | None = None
    warm_up_s: float | None = None
    held: tuple[Held, ...] = field(default=())
    requirements: Requirements = field(default=Requirements(), metadata={"old_name": "wish"})  # in ledgers, until 1.1
    estimates: tuple[CurveEstimate, ...] = ()
    log: str = ""
    resizable: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the body of the request."""
        return {
            "protocol": VERSION,
            "id": self.id,
            "name": self.name,
            "user": self.user or None,
            "backend": self.backend,
            **self.sizes.to_fields(),
            "partition": self.partition or None,
            "weight": self.weight,
            "workers_per_node": self.workers_per_node,
            "curve": curves.to_fields(self.curve) if self.curve else None,
            "up_cost_s": self.up_cost_s,
            "down_cost_s": self.down_cost_s,
            "warm_up_s": self.warm_up_s,
            "held": [held.to_json() for held in self.held],
            **self.requirements.to_fields(),
            "estimates": [estimate.to_json() for estimate in self.estimates],
            "log": self.log or None,
            "resizable": self.resizable,
        }

    @classmethod
    def from_json(cls, data: object) -> Registration:
        """Read the body of a request; raises Malformed."""
        fields = Fields(data, "trainer")
        version = fields.whole("protocol", 1, minimum=1)
        if version > VERSION:
            raise fields.fault(
                f"its driver speaks protocol {version} and the daemon {VERSION}: upgrade the daemon first"
            )
        id_ = fields.name("id", form=_TRAINER_ID, wanted="a job id or run-<host>-<pid>")
        sizes = Sizes.read(fields)
        held_most = min(HELD_MOST, HELD_PER_NODE_MOST * sizes.high)
        return cls(
            id=id_,
            name=fields.text("name", "") or id_,
            backend=fields.name("backend"),
            sizes=sizes,
            user=fields.name("user", ""),
            partition=fields.name("partition", ""),
            weight=fields.number("weight", 1.0, maximum=WEIGHT_MOST),
            workers_per_node=fields.whole("workers_per_node", None, minimum=1, maximum=NODES_MOST),
            curve=() if (curve := fields.nested("curve")) is None else curves.read(curve),
            up_cost_s=fields.number("up_cost_s", None),
            down_cost_s=fields.number("down_cost_s", None),
            warm_up_s=fields.number("warm_up_s", None),
            held=tuple(map(Held.from_json, fields.items("held", held_most))),
            requirements=Requirements.read(fields),
            estimates=curves.estimates(fields, "estimates"),
            log=_path(fields.raw("log")),
            resizable=fields.flag("resizable", False),
        )


def _path(value: object) -> str:
    """Return a path unchanged, "" for anything else: an odd name of a file is no reason to refuse a trainer."""
    return value if isinstance(value, str) and value.isprintable() and len(value) <= _PATH_MOST else ""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A class of nodes that a trainer may use, for its driver: GPUs by type, features, CPUs (0: not known)."""

    name: str
    gpus: Mapping[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    cpus: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the object that `from_json` reads."""
        return {"class": self.name, "gpus": dict(self.gpus), "features": list(self.features), "cpus": self.cpus}

    @classmethod
    def from_json(cls, data: object) -> NodeKind:
        """Read one item of the list in a welcome; raises Malformed."""
        fields = Fields(data, "the daemon's answer: classes")
        gpus, features = fields.raw("gpus") or {}, fields.items("features", NODES_MOST)
        if not isinstance(gpus, dict) or not all(isinstance(name, str) for name in (*gpus, *features)):
            raise fields.wrong("gpus", "numbers of GPUs by type")
        counted = Fields(gpus, "the daemon's answer: gpus")
        return cls(
            fields.name("class"), {name: counted.whole(name) for name in gpus}, tuple(features), fields.whole("cpus", 0)
        )


@dataclass(frozen=True, slots=True)
class Welcome:
    """The daemon's answer to a registration.

    `epoch` fences older drivers of the trainer. `poll_s` is the time between two snapshots, `listed` is what the driver
    has to carry out, and `note` is a sentence for the trainer's log. `classes` are those that the trainer may use.
    """

    epoch: int
    poll_s: float
    listed: Leases
    note: str = ""
    classes: tuple[NodeKind, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {
            "protocol": VERSION,
            "epoch": self.epoch,
            "poll_s": self.poll_s,
            "note": self.note,
            "classes": [kind.to_json() for kind in self.classes],
            **self.listed.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Welcome:
        """Read the body of an answer; raises Malformed, also if the daemon is too old to be understood."""
        fields = Fields(data, "the daemon's answer")
        version = fields.whole("protocol", 1, minimum=1)
        if version < VERSION:
            raise fields.fault(f"it speaks protocol {version} and this driver {VERSION}: upgrade the daemon first")
        return cls(
            epoch=fields.whole("epoch"),
            poll_s=fields.number("poll_s"),
            listed=Leases.from_json(data),
            note=fields.text("note", ""),
            classes=tuple(map(NodeKind.from_json, fields.items("classes", CLASSES_MOST))),
        )
