"""Parsers from Slurm's text output to typed objects.

Incomplete or unknown output raises SnapshotError: a reader that skips unknown parts would one day see idle nodes where
there are none. A pending job is on no node, so one that cannot be read counts as a waiting job. Times are read as unix
seconds (SLURM_TIME_FORMAT=%s), or as local ISO times from releases that ignore that variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from typing import Generic, TypeVar

from slurm_plugin.errors import SlurmError, SnapshotError, one_line
from slurm_plugin.nodeset import expand
from slurm_plugin.read import request
from slurm_plugin.read.settings import Shown, number
from slurm_plugin.read.types import Job, Node, NodeAddress, Partition, Reservation

# squeue's format of each field we read, in the order of the output. Free text (name, comment) may hold any character,
# line ends included, hence the unguessable separator.
_LETTERS = ("i", "u", "P", "T", "N", "Y", "S", "V", "l", "r", "D", "E", "Q", "v", "a")
_JOB_FIELDS = (*(f"%{letter}" for letter in _LETTERS), request.FORMAT, "%j", "%k")
_ID, _USER, _PARTITION, _STATE, _NODE_NAMES = range(5)
_ACCOUNT = 14
# The bracket is missing if squeue cut the list of an array's tasks.
_JOB_ID = re.compile(r"\d+(_(\d+|\[[^\]]*\]?)|\+\d+)?$")
_PARTITIONS = re.compile(r"[^\s,]+(,[^\s,]+)*$")

# The number of records kept beyond those of the last answer. A few MB each.
_KEPT = 1 << 13

LATEST_S = 253_402_300_799
"""The end of the year 9999, the last that a date can have."""

_Raw = TypeVar("_Raw", bound=Hashable)
_Item = TypeVar("_Item")

# The marks that Slurm appends to a state if it has no space for a word.
_STATE_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "%": "POWERING_DOWN",
    "!": "POWER_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
# The same flag under the shorter names that scontrol or sinfo use for it.
_FLAG_NAMES = {"PLND": "PLANNED", "COMP": "COMPLETING", "RESV": "RESERVED", "MAINT": "MAINTENANCE"}
_FREE_TEXT = re.compile(r" (?:Reason|Comment|Extra)=")
_RECORD = re.compile(r"\S+\s+\w+=")
_GPU = re.compile(r"gpu:(?:(?P<kind>[^:,()]+):)?(?P<count>\d{1,18})(?:\([^)]*\))?$")
_GPUS_USED = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=(\d{1,18})(?!\d)")
_NUMBER = re.compile(r"\d{1,18}$")
_NO_TIME = frozenset({"N/A", "NONE", "UNKNOWN", "(NULL)", ""})
_TIME_LIMIT = re.compile(r"(?:(?:(\d{1,12})-)?(\d{1,12}):)?(\d{1,12}):(\d{1,12})$")
_NO_RESERVATION = "No reservations in the system"


def job_format(separator: str) -> str:
    """Build squeue's --format whose output `jobs` reads; `separator` must not occur in any job's name or comment."""
    return "".join(f"{field}{separator}" for field in _JOB_FIELDS)


def jobs(text: str, separator: str) -> tuple[Job, ...]:
    """Read the output, header line included, of squeue with `job_format(separator)`."""
    *fields, end = text.split(separator)
    width = len(_JOB_FIELDS)
    if len(fields) < width or len(fields) % width or end != "\n" or not fields[0].startswith("JOBID"):
        raise SnapshotError("squeue's answer is cut short or not in the format asked for")
    return tuple(_JOBS.read([tuple(fields[first : first + width]) for first in range(width, len(fields), width)]))


def nodes(text: str) -> dict[str, Node]:
    """Read `scontrol show nodes -o`; no node at all is an error."""
    found = _NODES.read(_records(text, "NodeName="))
    if not found:
        raise SnapshotError("scontrol shows no node at all")
    return {node.name: node for node in found}


def node_addresses(text: str) -> dict[str, NodeAddress]:
    """Read the address of each node in `scontrol show nodes -o`; an unregistered node may have only its name."""
    found: dict[str, NodeAddress] = {}
    for fields in map(_fields, _records(text, "NodeName=")):
        name = fields["NodeName"]
        host_name = _text(fields.get("NodeHostName", "")) or name
        found[name] = NodeAddress(_text(fields.get("NodeAddr", "")) or host_name, host_name)
    return found


def reservations(text: str) -> tuple[Reservation, ...]:
    """Read `scontrol show reservation -o`."""
    if text.strip() == _NO_RESERVATION:
        return ()
    found = []
    for record in _records(text, "ReservationName="):
        fields = _fields(record)
        start_s, end_s = _time(_need(fields, "StartTime")), _time(_need(fields, "EndTime"))
        if start_s is None or end_s is None:
            raise SnapshotError(f"reservation without a time: {record[:80]!r}")
        flags = frozenset(_words(_need(fields, "Flags")))
        names = _nodeset(_need(fields, "Nodes"))
        found.append(Reservation(fields["ReservationName"], names, start_s, end_s, flags))
    if not found:
        raise SnapshotError("scontrol gave an empty answer about reservations")
    return tuple(found)


def partitions(text: str) -> dict[str, Partition]:
    """Read `scontrol show partition -o`; no partition at all is an error."""
    found: dict[str, Partition] = {}
    for name, fields in partition_options(text).items():
        limit_s = time_limit_s(_need(fields, "MaxTime"))
        tier, most = fields.get("PriorityTier", ""), fields.get("MaxNodes", "")
        groups = fields.get("AllowGroups", "ALL")
        found[name] = Partition(
            name=name,
            nodes=_nodeset(_need(fields, "Nodes")),
            state=_need(fields, "State"),
            max_time_s=limit_s,
            priority_tier=number(tier) if tier.isdecimal() else None,
            # since 26.05 it has a field of its own
            exclusive="EXCLUSIVE" in fields.get("OverSubscribe", "") or fields.get("Exclusive") == "NODE",
            max_nodes=number(most) if most.isdecimal() else None,
            groups=() if groups == "ALL" else tuple(groups.split(",")),
        )
    if not found:
        raise SnapshotError("scontrol shows no partition at all")
    return found


def partition_options(text: str) -> dict[str, dict[str, str]]:
    """Read every option of `scontrol show partition -o` by partition; no partition at all is an empty mapping."""
    return {fields["PartitionName"]: Shown(fields) for fields in map(_fields, _records(text, "PartitionName="))}


class _Memory(Generic[_Raw, _Item]):
    """A cache of parsed records: most of a large cluster is unchanged since a second ago, and is not parsed again.

    It grows with the queue: a cache of fixed size that drops the oldest forgets all of a longer queue at every poll.
    """

    def __init__(self, function: Callable[[_Raw], _Item]) -> None:
        self._function = function
        self._kept: dict[_Raw, _Item] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, answer: Sequence[_Raw]) -> list[_Item]:
        """Read all of an answer; records that it does not show are dropped once there are too many."""
        kept, found = self._kept, []
        for raw in answer:
            item = kept.get(raw)
            if item is None:
                item = kept[raw] = self._function(raw)
            found.append(item)
        if len(kept) > len(answer) + _KEPT:
            self._kept = dict(zip(answer, found, strict=True))
        return found


def _job(raw: tuple[str, ...]) -> Job:
    """Return a parsed job; an unreadable pending job becomes a waiting one, any other raises SnapshotError."""
    raw = (raw[_ID].removeprefix("\n"), *raw[1:])
    try:
        return _readable_job(raw)
    except SnapshotError as error:
        row = one_line(" ".join(raw[:8]))
        if job_state(raw[_STATE], raw[_NODE_NAMES])[0] != "PENDING":
            raise SnapshotError(f"squeue shows a job that cannot be read ({error}): {row}") from None
        account, _, name, comment = raw[_ACCOUNT:]
        return unreadable_job(
            f"{error}: {row}", raw[_ID], raw[_PARTITION], user=raw[_USER], account=account, name=name, comment=comment
        )


def unreadable_job(
    why: str, job_id: str, partition: str, *, user: str = "", account: str = "", name: str = "", comment: str = ""
) -> Job:
    """Return a pending job of which at most these fields could be read: it waits without a plan, for any node."""
    return Job(
        id=job_id if _JOB_ID.match(job_id) else f"?{one_line(job_id)[:20]}",
        user=user,
        partition=tuple(partition.split(",")) if _names_partitions(partition) else (),
        state="PENDING",
        name=name,
        nodes=(),
        sched_nodes=(),
        start_s=None,
        submit_s=0.0,
        time_limit_s=None,
        reason="",
        node_count=0,
        comment=_text(comment),
        dependency="",
        priority=0,
        reservation="",
        account=_text(account),
        unreadable=one_line(why),
    )


def _names_partitions(text: str) -> bool:
    return text != "(null)" and text.isprintable() and _PARTITIONS.match(text) is not None


def _readable_job(raw: tuple[str, ...]) -> Job:
    job_id, user, partition, state, names, sched, start, submit, limit = raw[:9]
    reason, count, depends, priority, resv, account, asked, name, comment = raw[9:]
    submit_s = _time(submit)
    state, expedited = job_state(state, names)
    if not _JOB_ID.match(job_id):
        raise SnapshotError("no job id")
    if not state or not _names_partitions(partition) or submit_s is None:
        raise SnapshotError("no state, partition or submit time")
    return Job(
        id=job_id,
        user=user,
        partition=tuple(partition.split(",")),
        state=state,
        name=name,
        nodes=_nodeset(names),
        sched_nodes=_nodeset(sched),
        start_s=_time(start),
        submit_s=submit_s,
        time_limit_s=time_limit_s(limit),
        reason=_text(reason),
        node_count=_number(count),
        comment=_text(comment),
        dependency=_text(depends),
        priority=_number(priority),
        reservation=_text(resv),
        account=_text(account),
        expedited=expedited,
        request=request.read(asked),
    )


def _node(record: str) -> Node:
    fields = _fields(record)
    state, flags = node_state(_need(fields, "State"))
    _need(fields, "CfgTRES")  # one of the last fields: the record is whole up to its free text
    gres, gpus = node_gpus(fields.get("Gres", ""))
    _, _, reason = record.partition(" Reason=")
    return Node(
        name=fields["NodeName"],
        state=state,
        flags=flags,
        partitions=tuple(_words(fields.get("Partitions", ""))),
        features=tuple(_words(fields.get("ActiveFeatures", ""))),
        gres=gres,
        gpus=gpus,
        cpus=_number(_need(fields, "CPUTot")),
        memory_bytes=_memory_bytes(fields),
        reason=reason.strip(),
        weight=_number(fields.get("Weight", "1")),
        cpus_used=_number(fields.get("CPUAlloc", "0")),
        memory_used_bytes=_number(fields.get("AllocMem", "0")) * 2**20,
        gpus_used=gpus_used(fields.get("AllocTRES", ""), gpus, fields.get("GresUsed", "")),
    )


_JOBS = _Memory(_job)
_NODES = _Memory(_node)


def _memory_bytes(fields: dict[str, str]) -> int:
    """Return the memory of a node that jobs can use: MemSpecLimit is reserved for Slurm's own processes."""
    kept = fields.get("MemSpecLimit", "")
    return max(0, _number(_need(fields, "RealMemory")) - (number(kept) or 0 if kept.isdecimal() else 0)) * 2**20


def _records(text: str, first_key: str) -> list[str]:
    """Split `scontrol -o` output into records; an administrator's free text may contain line ends."""
    if text and not text.endswith("\n"):
        raise SnapshotError(f"scontrol's answer is cut short: it ends in {text[-40:]!r}")
    records: list[str] = []
    for line in text.splitlines():
        if line.startswith(first_key) and _RECORD.match(line):
            records.append(line)
        elif records and _FREE_TEXT.search(records[-1]):
            records[-1] += f" {line}"
        elif line.strip():
            raise SnapshotError(f"scontrol shows a line that makes no sense: {line[:80]!r}")
    return records


def _fields(record: str) -> dict[str, str]:
    """Return a record's fields before its free text, which may look like fields; the first of equal names counts."""
    fields: dict[str, str] = {}
    for word in _FREE_TEXT.split(record, maxsplit=1)[0].split():
        key, equals, value = word.partition("=")
        if equals:
            fields.setdefault(key, value)
    return fields


def _need(fields: dict[str, str], key: str) -> str:
    try:
        return fields[key]
    except (KeyError, SnapshotError):
        what = next(iter(fields.items()), ("?", "?"))
        shown = one_line(f"{what[0]}={what[1]}")
        raise SnapshotError(f"scontrol shows {shown} without {key}: the answer is incomplete") from None


def job_state(state: str, nodes: str) -> tuple[str, bool]:
    """Return a job's state, and whether it is expedited: Slurm then shows a job without nodes so, not as PENDING."""
    expedited = state == "EXPEDITING" and not _text(nodes)
    return "PENDING" if expedited else state, expedited


def node_state(text: str) -> tuple[str, frozenset[str]]:
    """Split a node state: "IDLE*+DRAIN" is IDLE with NOT_RESPONDING and DRAIN."""
    flags: set[str] = set()
    words = []
    for part in text.upper().split("+"):
        word = part.rstrip("".join(_STATE_SUFFIXES))
        flags.update(_STATE_SUFFIXES[mark] for mark in part[len(word) :])
        words.append(word)
    if not words[0].isalpha():
        raise SnapshotError(f"a node state that makes no sense: {one_line(text)!r}")
    flags.update(_FLAG_NAMES.get(word, word) for word in words[1:])
    return words[0], frozenset(flags)


def node_gpus(text: str) -> tuple[str, dict[str, int]]:
    """Find the GPUs in a node's GRES: the request for all of them, and their number by type."""
    gpus: dict[str, int] = {}
    for entry in _gres_entries(text):
        if match := _GPU.match(entry):
            kind = match["kind"] or ""
            gpus[kind] = gpus.get(kind, 0) + int(match["count"])
    request = ",".join(f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, count in gpus.items())
    return request, gpus


def gpus_used(tres: str, gpus: dict[str, int], gres: str = "") -> dict[str, int]:
    """Count the GPUs in use by type, in "cpu=4,gres/gpu=3,gres/gpu:a100=3" or, if present, in `gres` (GresUsed).

    Some clusters do not count GPUs among the TRES, others only their total. On a node whose `gpus` are all of one type
    the total is of that type.
    """
    if gres:
        return {kind: count for kind, count in node_gpus(gres.replace(":(null)", ""))[1].items() if count}
    found = {kind or "": int(count) for kind, count in _GPUS_USED.findall(tres)}
    total = found.pop("", 0)
    if found or not total:
        return found
    return {next(iter(gpus)) if len(gpus) == 1 else "": total}


def _gres_entries(text: str) -> list[str]:
    """Split a list of GRES at its commas, but not at those in "gpu:a100:4(S:0,1)"."""
    return re.split(r",(?![^(]*\))", text) if text and text != "(null)" else []


def _nodeset(text: str) -> tuple[str, ...]:
    try:
        return tuple(expand(text))
    except SlurmError as error:
        raise SnapshotError(str(error)) from error


def _time(text: str) -> float | None:
    if text.upper() in _NO_TIME:
        return None
    try:
        time_s = float(text) if text.isdecimal() else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        time_s = -1.0
    if not 0.0 <= time_s <= LATEST_S:
        raise SnapshotError(f"a time that makes no sense: {one_line(text)!r}")
    return time_s


def time_limit_s(text: str) -> float | None:
    """Read [days-[hours:]]minutes:seconds; UNLIMITED and unset limits are None."""
    match = _TIME_LIMIT.match(text)
    if match is None:
        if text and not text[0].isdigit():
            return None
        raise SnapshotError(f"a time limit that makes no sense: {one_line(text)!r}")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _number(text: str) -> int:
    if _NUMBER.match(text) is None:
        raise SnapshotError(f"not a number: {one_line(text)!r}")
    return int(text)


def _words(text: str) -> list[str]:
    return text.split(",") if text and text != "(null)" else []


def _text(text: str) -> str:
    return "" if text == "(null)" else text
