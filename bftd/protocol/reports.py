"""Reports of a driver to the daemon: frozen messages, each with the time at which it happened (unix seconds)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from bftd.protocol import curves
from bftd.protocol.bounds import (
    LEASE_ID_MOST,
    NODES_MOST,
    REPORTS_MOST,
    SAMPLES_MOST,
    TAIL_LINE_MOST,
    TAIL_LINES_MOST,
)
from bftd.protocol.curves import CurveEstimate
from bftd.protocol.fields import Fields, printable
from bftd.protocol.lease import LEASE_ID, LEASE_ID_FORM, REPORTED, LeaseState

ResizeKind = Literal["up", "down", "crash"]
_RESIZE_KINDS: tuple[ResizeKind, ...] = ("up", "down", "crash")


@dataclass(frozen=True, slots=True)
class Report(ABC):
    """Any report of a driver; `op` names its kind in messages and in the ledger."""

    op: ClassVar[str] = ""
    at_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the object that `report_from_json` reads."""
        return {"op": self.op, **asdict(self)}

    @property
    def about(self) -> dict[str, Any]:
        """The report's contents without its kind, for the ledger."""
        return asdict(self)

    @property
    def where(self) -> str | None:
        """The node that the report is about, None if there is none."""
        return None

    @classmethod
    @abstractmethod
    def read(cls, at_s: float, fields: Fields) -> Report:
        """Read the report from the fields of one JSON object; raises Malformed."""


@dataclass(frozen=True, slots=True)
class LeaseReport(Report):
    """A lease has come to `state`; `job_id` is its pilot's, None while there is none, and `reason` a sentence."""

    op: ClassVar[str] = "lease"
    id: str
    state: LeaseState
    job_id: str | None = None
    reason: str = ""

    @classmethod
    def read(cls, at_s: float, fields: Fields) -> LeaseReport:
        """See Report.read."""
        id_ = fields.name("id", most=LEASE_ID_MOST, form=LEASE_ID, wanted=LEASE_ID_FORM)
        state = fields.text("state", choices=REPORTED)
        return cls(at_s, id_, state, fields.name("job_id", None), fields.text("reason", ""))


@dataclass(frozen=True, slots=True)
class ProgressReport(Report):
    """The progress of training: `step` and `samples` are saved, the rate was measured at one size over `window_s`.

    `nodes` and `world_size` are those of the present group; `loss` is None if none is known or it is not finite;
    `steps_lost` counts since the trainer's start. `save_s` is how long a save takes, None if a resize
    needs none or none was measured; `state_bytes` is a checkpoint's size, None if not known. `total_steps` are those of
    the whole training, None if the script does not tell; `steps_per_s` goes with `samples_per_s`, 0 if not known;
    `live_step` is the step that training has reached, saved or not. An older driver sends none of the last three.
    """

    op: ClassVar[str] = "progress"
    step: int
    samples: float
    samples_per_s: float = 0.0
    nodes: int = 0
    world_size: int = 0
    loss: float | None = None
    steps_lost: int = 0
    window_s: float = 0.0
    save_s: float | None = None
    state_bytes: int | None = None
    total_steps: int | None = None
    steps_per_s: float = 0.0
    live_step: int = 0

    @classmethod
    def read(cls, at_s: float, fields: Fields) -> ProgressReport:
        """See Report.read."""
        return cls(
            at_s=at_s,
            step=fields.whole("step"),
            samples=fields.number("samples", maximum=SAMPLES_MOST),
            samples_per_s=fields.number("samples_per_s", 0.0),
            nodes=fields.whole("nodes", 0, maximum=NODES_MOST),
            world_size=fields.whole("world_size", 0),
            # a diverging model reports NaN: its user should see that, and the request is valid
            loss=fields.measure("loss"),
            steps_lost=fields.whole("steps_lost", 0),
            window_s=fields.number("window_s", 0.0),
            save_s=fields.number("save_s", None),
            state_bytes=fields.whole("state_bytes", None),
            total_steps=fields.whole("total_steps", None, minimum=1),
            steps_per_s=fields.number("steps_per_s", 0.0),
            live_step=fields.whole("live_step", 0),
        )


@dataclass(frozen=True, slots=True)
class ResizeReport(Report):
    """Training went on with another number of nodes; `stall_s` is how long it stood still, None if not measured.

    Its parts are: `save_s` until a checkpoint was stored, 0 if Slurm took nodes or workers keep their state in memory;
    `rendezvous_s` until workers ran; `load_s` until they had the checkpoint. The rest is the time to the first step.
    They are None if they were not measured, and so is `state_bytes`.
    """

    op: ClassVar[str] = "resize"
    from_nodes: int
    to_nodes: int
    kind: ResizeKind
    stall_s: float | None = None
    steps_lost: int = 0
    save_s: float | None = None
    rendezvous_s: float | None = None
    load_s: float | None = None
    state_bytes: int | None = None

    @classmethod
    def read(cls, at_s: float, fields: Fields) -> ResizeReport:
        """See Report.read."""
        return cls(
            at_s=at_s,
            from_nodes=fields.whole("from_nodes", maximum=NODES_MOST),
            to_nodes=fields.whole("to_nodes", maximum=NODES_MOST),
            kind=fields.text("kind", choices=_RESIZE_KINDS),
            stall_s=fields.number("stall_s", None),
            steps_lost=fields.whole("steps_lost", 0),
            save_s=fields.number("save_s", None),
            rendezvous_s=fields.number("rendezvous_s", None),
            load_s=fields.number("load_s", None),
            state_bytes=fields.whole("state_bytes", None),
        )


@dataclass(frozen=True, slots=True)
class SuspendReport(Report):
    """The trainer was suspended to disk at `step`."""

    op: ClassVar[str] = "suspend"
    step: int = 0

    @classmethod
    def read(cls, at_s: float, fields: Fields) -> SuspendReport:
        """See Report.read."""
        return cls(at_s, fields.whole("step", 0))


@dataclass(frozen=True, slots=True)
class ResumeReport(Report):
    """The trainer resumed from `step`."""

    op: ClassVar[str] = "resume"
    step: int = 0

    @classmethod
    def read(cls, at_s: float, fields: Fields) -> ResumeReport:
        """See Report.read."""
        return cls(at_s, fields.whole("step", 0))


@dataclass(frozen=True, slots=True)
class CrashReport(Report):
    """A worker ended by itself on `node` with exit code `rc`, negative for a signal; `text` is a sentence."""

    op: ClassVar[str] = "crash"
    node: str | None = None
    rc: int | None = None
    text: str = ""

    @property
    def where(self) -> str | None:
        """See Report.where."""
        return self.node

    @classmethod
    def read(cls, at_s: float, fields: Fields) -> CrashReport:
        """See Report.read."""
        return cls(at_s, fields.name("node", None), fields.whole("rc", None, minimum=-(2**31)), fields.text("text", ""))


@dataclass(frozen=True, slots=True)
class NoteReport(Report):
    """A sentence for people."""

    op: ClassVar[str] = "note"
    text: str = ""

    @classmethod
    def read(cls, at_s: float, fields: Fields) -> NoteReport:
        """See Report.read."""
        return cls(at_s, fields.text("text", ""))


@dataclass(frozen=True, slots=True)
class CurveReport(Report):
    """Estimates of the trainer's speed, on each class of nodes; they replace all earlier ones."""

    op: ClassVar[str] = "curve"
    estimates: tuple[CurveEstimate, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """See Report.to_json."""
        return {"op": self.op, **self.about}

    @property
    def about(self) -> dict[str, Any]:
        """See Report.about."""
        return {"at_s": self.at_s, "estimates": [estimate.to_json() for estimate in self.estimates]}

    @classmethod
    def read(cls, at_s: float, fields: Fields) -> CurveReport:
        """See Report.read."""
        found = curves.estimates(fields, "estimates")
        if not found:
            raise fields.wrong("estimates", "a list of at least one")
        return cls(at_s, found)


KINDS: Mapping[str, type[Report]] = {
    kind.op: kind
    for kind in (
        LeaseReport,
        ProgressReport,
        ResizeReport,
        SuspendReport,
        ResumeReport,
        CrashReport,
        NoteReport,
        CurveReport,
    )
}


def report_from_json(data: object) -> Report:
    """Read one report; raises Malformed with a line that names the field."""
    op = Fields(data, "report").text("op", choices=tuple(KINDS))
    fields = Fields(data, f"report {op}")
    return KINDS[op].read(fields.number("at_s"), fields)


def reports_of(data: object) -> tuple[int, list[Any]]:
    """Read the epoch of a request's body and its reports, still to be read by `report_from_json`; raises Malformed."""
    body = Fields(data, "report")
    return body.whole("epoch"), body.items("events", REPORTS_MOST)


def tail_of(data: object) -> tuple[str, ...] | None:
    """Read the last lines of a trainer's log from a request's body; None if they have not changed."""
    lines = data.get("tail") if isinstance(data, dict) else None
    if not isinstance(lines, list):
        return None
    return tuple(printable(line[:TAIL_LINE_MOST]) for line in lines[-TAIL_LINES_MOST:] if isinstance(line, str))


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports that a driver of one epoch sends at once, in the order in which they happened.

    `tail` are the last lines of the trainer's log, None if they have not changed.
    """

    epoch: int
    reports: tuple[Report, ...]
    tail: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the body of the request."""
        tail = {} if self.tail is None else {"tail": list(self.tail)}
        return {"epoch": self.epoch, "events": [report.to_json() for report in self.reports], **tail}

    @classmethod
    def from_json(cls, data: object) -> Reports:
        """Read the body of a request; raises Malformed."""
        epoch, items = reports_of(data)
        return cls(epoch, tuple(map(report_from_json, items)), tail_of(data))


@dataclass(frozen=True, slots=True)
class Taken:
    """The daemon's answer to reports: the version of the trainer's list, and the time to the trainer's expected end.

    `ends_in_s` is None if that is not known, and an older daemon does not send it. It is no time of day, since the
    driver's host may have another clock.
    """

    version: int
    ends_in_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {"version": self.version, "ends_in_s": self.ends_in_s}

    @classmethod
    def from_json(cls, data: object) -> Taken:
        """Read the body of an answer; raises Malformed."""
        fields = Fields(data, "the daemon's answer")
        return cls(fields.whole("version"), fields.number("ends_in_s", None))


@dataclass(frozen=True, slots=True)
class Summary:
    """A trainer's totals, sent at its end; None is what its driver does not know."""

    step: int | None = None
    samples: float | None = None
    resizes: int | None = None
    suspends: int | None = None
    steps_lost: int | None = None
    first_loss: float | None = None
    last_loss: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the known values."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}

    @classmethod
    def read(cls, fields: Fields) -> Summary:
        """Read the summary from the fields of one JSON object; raises Malformed."""
        return cls(
            step=fields.whole("step", None),
            samples=fields.number("samples", None, maximum=SAMPLES_MOST),
            resizes=fields.whole("resizes", None),
            suspends=fields.whole("suspends", None),
            steps_lost=fields.whole("steps_lost", None),
            first_loss=fields.measure("first_loss"),
            last_loss=fields.measure("last_loss"),
        )


NO_SUMMARY = Summary()


@dataclass(frozen=True, slots=True)
class Finish:
    """The trainer has ended: the exit code, and the reason in one sentence."""

    epoch: int
    exit_code: int
    reason: str = ""
    summary: Summary = NO_SUMMARY

    def to_json(self) -> dict[str, Any]:
        """Return the body of the request."""
        return {
            "epoch": self.epoch,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "summary": self.summary.to_json(),
        }

    @classmethod
    def from_json(cls, data: object) -> Finish:
        """Read the body of a request; raises Malformed."""
        body = Fields(data, "finish")
        summary = body.nested("summary")
        return cls(
            epoch=body.whole("epoch"),
            exit_code=body.whole("exit_code", minimum=-255, maximum=255),
            reason=body.text("reason", ""),
            summary=NO_SUMMARY if summary is None else Summary.read(summary),
        )
